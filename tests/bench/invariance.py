"""Whether a line's translation depends on the line alone: 500 real lines in 26 settings of batch size and order.

Usage: invariance.py [LINES [MODE …]]. Greedy and beam 5, in every precision of this device, and with --deterministic;
MODE picks some (fp32, int8, bf16, fp32_deterministic). Then the same lines 20 times with 1, 2 and 4 threads. The
model is that of `make bench-multi30k`, trained here if it is not there.
"""

import random
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from figures import REAL_DATA, ROOT, figure_line, nmt
from nmt.decoding.translator import Translation, Translator

BATCH_LINES = (1, 2, 7, 32, 128)
SHUFFLES = 5  # of each batch size; alone is the 26th setting
RUN = ROOT / "runs" / "multi30k-en-de"
MODES: dict[str, dict[str, object]] = {
    "fp32": {"precision": "fp32"},  # the default of a model of this width
    "int8": {"precision": "int8"},
    "fp32_deterministic": {"precision": "fp32", "deterministic": True},
    "bf16": {"precision": "bf16"},
}
REPEATS, THREADS, REPEATED_LINES = 20, (1, 2, 4), 50


def main() -> None:
    """Compare, in each mode."""
    data = REAL_DATA / "multi30k"
    if not data.is_dir():
        sys.exit("this bench needs ../shared/data/multi30k")
    nmt("train", "configs/multi30k-en-de.toml", "--data", data, "--out", RUN)
    lines = (data / "test_2016_flickr.en").read_text().split("\n")[: int(sys.argv[1]) if len(sys.argv) > 1 else 500]
    for name in sys.argv[2:] or MODES:
        for beam_size in (1, 5):
            texts, bits = differences(RUN, lines, beam_size, MODES[name])
            settings = len(BATCH_LINES) * SHUFFLES + 1
            measured = f"{texts} texts, {bits} scores of {len(lines)} lines x {settings} settings"
            asked = "0 texts" if name == "fp32" else "0 texts, 0 scores"
            ok = not texts and (name == "fp32" or not bits)
            print(figure_line(f"invariance_{name}_beam_{beam_size}", measured, asked, ok), flush=True)

    identical, across = repeats(RUN, lines[:REPEATED_LINES])
    asked = f"{REPEATS} each"
    shown = f"{identical} runs to the bit with {THREADS} threads; {across} of {REPEATED_LINES} lines differ across them"
    print(figure_line("repeats", shown, asked, set(identical) == {REPEATS}), flush=True)


def repeats(model: Path, lines: Sequence[str]) -> tuple[list[int], int]:
    """In the default mode: runs equal to the first to the bit, for each number of threads; lines that differ across."""
    firsts, identical = [], []
    for threads in THREADS:
        torch.set_num_threads(threads)
        translator = Translator(model, device="cpu")
        found = [translator.translations(lines) for _ in range(REPEATS)]
        identical.append(sum(each == found[0] for each in found))
        firsts.append([translation.text for translation in found[0]])
    return identical, sum(len(set(texts)) > 1 for texts in zip(*firsts, strict=True))


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
            model,
            decoding={"beam_size": beam_size},
            batch_rows=batch_lines * beam_size,
            num_workers=1,
            device="cpu",
            **mode,
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
