"""Whether a line's translation depends on the line alone: 500 real lines in 26 settings of batch size and order.

Usage: invariance.py [LINES]. Greedy and beam 5, in every precision of this device, and with --deterministic. The model
is that of `make bench-multi30k`, trained here if it is not there.
"""

import random
import sys
from collections.abc import Sequence
from pathlib import Path

from figures import REAL_DATA, ROOT, figure_line, nmt
from nmt.decoding.translator import Translation, Translator

BATCH_LINES = (1, 2, 7, 32, 128)
SHUFFLES = 5  # of each batch size; alone is the 26th setting
RUN = ROOT / "runs" / "multi30k-en-de"
MODES: tuple[dict[str, object], ...] = (
    {"precision": "fp32"},  # the default of a model of this width
    {"precision": "int8"},
    {"precision": "bf16"},
    {"precision": "fp32", "deterministic": True},
)


def main() -> None:
    """Compare, in each mode."""
    data = REAL_DATA / "multi30k"
    if not data.is_dir():
        sys.exit("this bench needs ../shared/data/multi30k")
    nmt("train", "configs/multi30k-en-de.toml", "--data", data, "--out", RUN)
    lines = (data / "test_2016_flickr.en").read_text().split("\n")[: int(sys.argv[1]) if len(sys.argv) > 1 else 500]
    for mode in MODES:
        for beam_size in (1, 5):
            texts, bits = differences(RUN, lines, beam_size, mode)
            name = "_".join(str(value) if key == "precision" else key for key, value in mode.items())
            settings = len(BATCH_LINES) * SHUFFLES + 1
            measured = f"{texts} texts, {bits} scores of {len(lines)} lines x {settings} settings"
            asked = "0 texts" if name == "fp32" else "0 texts, 0 scores"
            ok = not texts and (name == "fp32" or not bits)
            print(figure_line(f"invariance_{name}_beam_{beam_size}", measured, asked, ok), flush=True)


def differences(
    model: Path, lines: Sequence[str], beam_size: int, mode: dict[str, object], shuffles: int = SHUFFLES
) -> tuple[int, int]:
    """Lines whose text, and lines whose score in bits, is not the same in every setting."""
    rng = random.Random(1)
    seen: list[set[str]] = [set() for _ in lines]
    scores: list[set[float]] = [set() for _ in lines]

    def note(places: Sequence[int], translations: Sequence[Translation]) -> None:
        for place, translation in zip(places, translations, strict=True):
            seen[place].add(translation.text)
            scores[place].update(hypothesis.score for hypothesis in translation.hypotheses[:1])

    for batch_lines in BATCH_LINES:
        translator = Translator(
            model, decoding={"beam_size": beam_size}, batch_rows=batch_lines * beam_size, device="cpu", **mode
        )
        for _ in range(shuffles):
            order = rng.sample(range(len(lines)), len(lines))
            # Batches of neighbours as they come, so that short and long lines meet.
            for start in range(0, len(order), batch_lines):
                places = order[start : start + batch_lines]
                note(places, translator.translations([lines[place] for place in places]))
    for place, line in enumerate(lines):
        note([place], translator.translations([line]))
    return sum(len(texts) > 1 for texts in seen), sum(len(values) > 1 for values in scores)


if __name__ == "__main__":
    main()
