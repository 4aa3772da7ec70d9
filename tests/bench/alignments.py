"""Word alignments from attention against eflomal's, by alignment error rate (AER) on gold links made by hand.

    python tests/bench/alignments.py

German-English: models of configs/alignment-{de-en,en-de}.toml, trained on ../shared/data/mixed, lower-cased and
tokenised as the gold text is, and eflomal on the same text. English-French: one model on Multi30k and the gold text,
which is of another kind. English-Swedish: eflomal alone, on the gold text alone, as a check of what counts errors.
Texts, models and links lie in runs/alignment* and are made where they are missing; delete a folder to make it anew.
eflomal is installed into peers/eflomal: it needs a C compiler.
"""

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from figures import REAL_DATA, ROOT, figure_line, nmt
from nmt.alignment.gold import GoldLinks, quality, read_links, to_pharaoh
from nmt.alignment.links import SYMMETRISED, Links
from nmt.text.lines import read_file

GOLD = REAL_DATA / "align"
TEXT = ROOT / "runs" / "alignment"
PEER = ROOT / "peers" / "eflomal"
BEST = "grow-diag-final-and"


@contextmanager
def timed(part: str) -> Iterator[None]:
    """Say how many minutes a part took."""
    began = time.monotonic()
    yield
    print(f"# {part}: {(time.monotonic() - began) / 60:.1f} minutes", file=sys.stderr, flush=True)


# Texts


def prepare(job: tuple[Sequence[Path], str, Path, int]) -> None:
    """The lines of some files, one after another, lower-cased and tokenised; the last `as_is` files just the former."""
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    sources, language, out, as_is = job
    if out.exists():
        return
    normalise, tokenise = MosesPunctNormalizer(language).normalize, MosesTokenizer(language).tokenize
    lines = []
    for number, source in enumerate(sources):
        text = [line.lower() for line in source.read_text(encoding="utf-8").removesuffix("\n").split("\n")]
        if number < len(sources) - as_is:
            text = [" ".join(tokenise(normalise(line), escape=False)) for line in text]
        lines += text
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f"{out.name}.tmp")
    temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    temporary.replace(out)


def prepare_all() -> None:
    """All texts, each in the folder of the pair of languages that are trained on it."""
    jobs: list[tuple[Sequence[Path], str, Path, int]] = []
    for language in ("de", "en"):
        jobs.append(([REAL_DATA / "mixed" / f"train.{language}"], language, TEXT / f"train.{language}", 0))
        jobs.append(([REAL_DATA / "tatoeba" / f"dev.{language}"], language, TEXT / f"dev.{language}", 0))
        jobs.append(([GOLD / "de-en" / f"text.{language}"], language, TEXT / "gold-de-en" / f"text.{language}", 1))
    for language, side in (("en", "src"), ("fr", "tgt")):
        gold, captions = GOLD / "en-fr" / f"text.{side}", REAL_DATA / "multi30k"
        jobs.append(([captions / f"train.{language}", gold], language, TEXT / "en-fr" / f"train.{language}", 1))
        jobs.append(([captions / f"val.{language}"], language, TEXT / "en-fr" / f"dev.{language}", 0))
        jobs.append(([gold], language, TEXT / "gold-en-fr" / f"text.{language}", 1))
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(prepare, jobs))


def gold_links(pair: str) -> list[GoldLinks]:
    path = GOLD / pair / "gold.talp"
    return read_links(read_file(path), str(path))


# The peer


def install_eflomal() -> Path:
    """eflomal in a virtual environment of its own; its command."""
    command = PEER / "bin" / "eflomal-align"
    if not command.exists():
        subprocess.run([sys.executable, "-m", "venv", PEER], check=True)
        subprocess.run([PEER / "bin" / "pip", "install", "-q", "eflomal"], check=True)
    return command


def eflomal(name: str, src: Sequence[str], tgt: Sequence[str]) -> tuple[list[Links], list[Links]]:
    """What eflomal finds in both directions, all texts trained on together."""
    folder = TEXT / f"eflomal-{name}"
    files = {part: folder / part for part in ("src", "tgt", "forward", "reverse")}
    if not files["reverse"].exists():
        command = install_eflomal()
        folder.mkdir(parents=True, exist_ok=True)
        for part, lines in (("src", src), ("tgt", tgt)):
            files[part].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        with timed(f"eflomal {name}, {len(src):,} lines"):
            found = {part: folder / f"{part}.tmp" for part in ("forward", "reverse")}
            options = ["-s", files["src"], "-t", files["tgt"], "-f", found["forward"], "-r", found["reverse"]]
            subprocess.run([command, "--overwrite", *options], check=True)
            for part, temporary in found.items():
                temporary.replace(files[part])
    forward, reverse = (read_links(read_file(files[part]), str(files[part])) for part in ("forward", "reverse"))
    return [links.possible for links in forward], [links.possible for links in reverse]


# What is compared


def percent(links: Sequence[Links], gold: Sequence[GoldLinks]) -> float:
    return 100 * quality(links, gold).aer


def aer_by_hand(links: Sequence[str], gold: Sequence[str]) -> float:
    """AER in percent, from lines of Pharaoh: told again, without nmt."""
    right = total = 0
    for found_line, gold_line in zip(links, gold, strict=True):
        found, by_hand = set(found_line.split()), gold_line.split()
        sure = {link for link in by_hand if "-" in link}
        possible = sure | {link.replace("p", "-") for link in by_hand}
        right += len(found & sure) + len(found & possible)
        total += len(found) + len(sure)
    return 100 * (1 - right / total)


def evaluated(pair: str, src: str, tgt: str, *options: object) -> list[dict[str, Any]]:
    """What `nmt eval --align` says of models on the gold text."""
    folder = TEXT / f"gold-{pair}"
    texts = ["--src", folder / f"text.{src}", "--tgt", folder / f"text.{tgt}"]
    said = nmt("eval", "--align", GOLD / pair / "gold.talp", *texts, "--json", *options)
    rows: list[dict[str, Any]] = json.loads(said)
    return rows


def shown(row: dict[str, Any]) -> str:
    """A row with its layer and head, if it is of one choice."""
    keys = [f"{key.removeprefix('align_')} {row[key]}" for key in row if key.startswith("align_")]
    return f"{row['AER']:.1f}" + (f" ({', '.join(keys)})" if keys else "")


def figures_of(name: str, rows: Sequence[dict[str, Any]], asked: str, ok: dict[str, bool]) -> None:
    for row in rows:
        if row["links_of"] in ("forward", "reverse", BEST):
            kind = row["links_of"].replace("-", "_")
            good = ok.get(row["links_of"], True)
            wanted = asked if row["links_of"] in ok else "-"
            print(figure_line(f"aer_{name}_{kind}", shown(row), wanted, good), flush=True)


def peer_figures(name: str, forward: Sequence[Links], reverse: Sequence[Links], gold: Sequence[GoldLinks]) -> float:
    """AER of eflomal each way and together; returns the last."""
    together = list(map(SYMMETRISED[BEST], forward, reverse))
    for kind, links in (("forward", forward), ("reverse", reverse), (BEST.replace("-", "_"), together)):
        print(figure_line(f"aer_{name}_eflomal_{kind}", f"{percent(links, gold):.1f}", "-", True), flush=True)
    return percent(together, gold)


def controls(name: str, links: Sequence[Links], gold: Sequence[GoldLinks], src: Sequence[str]) -> None:
    """The same links with their target tokens shuffled, and word k with word k: both must be far worse."""
    rng = random.Random(1)
    shuffled = []
    for found in links:
        targets = [j for _, j in sorted(found)]
        rng.shuffle(targets)
        shuffled.append(frozenset(zip([i for i, _ in sorted(found)], targets, strict=True)))
    diagonal = [frozenset((k, k) for k in range(len(line.split()))) for line in src]
    best = percent(links, gold)
    for kind, worse in (("shuffled", shuffled), ("diagonal", diagonal)):
        value = percent(worse, gold)
        print(figure_line(f"aer_{name}_{kind}", f"{value:.1f}", "> twice, the control", value > 2 * best), flush=True)


def german() -> None:
    """Attention of two models against eflomal, with heads chosen in several ways."""
    runs = {pair: ROOT / "runs" / f"alignment-{pair}" for pair in ("de-en", "en-de")}
    for pair, run in runs.items():
        with timed(f"training {pair}"):
            nmt("train", f"configs/alignment-{pair}.toml", "--data", TEXT, "--out", run)
    gold = gold_links("de-en")
    texts = [read_file(TEXT / f"train.{language}") for language in ("de", "en")]
    gold_texts = [read_file(TEXT / "gold-de-en" / f"text.{language}") for language in ("de", "en")]
    forward, reverse = eflomal("de-en", *(text + last for text, last in zip(texts, gold_texts, strict=True)))
    forward, reverse = forward[-len(gold) :], reverse[-len(gold) :]
    peer = peer_figures("de_en", forward, reverse, gold)
    half = len(gold) // 2
    together = list(map(SYMMETRISED[BEST], forward, reverse))
    print(figure_line("aer_de_en_eflomal_second_half", f"{percent(together[half:], gold[half:]):.1f}", "-", True))
    controls("de_en", together, gold, gold_texts[0])
    both = ["-m", runs["de-en"], "--reverse-model", runs["en-de"]]
    with timed("attention de-en"):
        plain = evaluated("de-en", "de", "en", *both)
        figures_of("de_en_default", plain, "-", {})
        figures_of("de_en_by_gold", evaluated("de-en", "de", "en", *both, "--choose", "gold"), "-", {})
        agreed = evaluated("de-en", "de", "en", *both, "--choose", "agreement")
    before = {row["links_of"]: row["AER"] for row in plain}
    better = {row["links_of"]: row["AER"] <= before[row["links_of"]] for row in agreed}
    figures_of("de_en_by_agreement", agreed, "<= default", better)
    if not all(better.values()):
        print("  cause: heads that agree most are not always right", flush=True)
    ours = next(row["AER"] for row in agreed if row["links_of"] == BEST)
    print(figure_line("aer_de_en_against_eflomal", f"{ours:.1f} to {peer:.1f}", "<= eflomal's", ours <= peer))
    if ours > peer:
        print("  cause: two short trainings to translate, which nothing asks for links; eflomal is made to align")
    heads = evaluated("de-en", "de", "en", "-m", runs["de-en"], "--by-head")
    for shift in (False, True):
        best = min((row for row in heads if row["align_shift"] is shift), key=lambda row: row["AER"])
        print(
            figure_line(f"aer_de_en_best_head_{'read' if shift else 'predicted'}", shown(best), "-", True), flush=True
        )


def french() -> None:
    """One direction, trained for a short time on little text."""
    run = ROOT / "runs" / "alignment-en-fr"
    with timed("training en-fr"):
        nmt("train", "configs/alignment-en-fr.toml", "--data", TEXT / "en-fr", "--out", run)
    gold = gold_links("en-fr")
    forward, reverse = eflomal("en-fr", *(read_file(TEXT / "en-fr" / f"train.{language}") for language in ("en", "fr")))
    peer_figures("en_fr", forward[-len(gold) :], reverse[-len(gold) :], gold)
    with timed("attention en-fr"):
        figures_of("en_fr_default", evaluated("en-fr", "en", "fr", "-m", run), "-", {})
        figures_of("en_fr_by_gold", evaluated("en-fr", "en", "fr", "-m", run, "--choose", "gold"), "-", {})


def swedish() -> None:
    """What counts errors, checked: by ten lines that know nothing of it, on all 1,164 sentences."""
    gold = gold_links("en-sv")
    forward, reverse = eflomal("en-sv", *(read_file(GOLD / "en-sv" / f"text.{side}") for side in ("src", "tgt")))
    peer_figures("en_sv", forward, reverse, gold)
    lines = [to_pharaoh(links) for links in forward]
    ours, told = percent(forward, gold), aer_by_hand(lines, read_file(GOLD / "en-sv" / "gold.talp"))
    name, same = "aer_en_sv_told_again", abs(ours - told) < 1e-9
    print(figure_line(name, f"{ours:.4f} and {told:.4f}", "equal", same), flush=True)


def main() -> None:
    """Print the figures, the quick ones first."""
    if not GOLD.is_dir():
        sys.exit("this bench needs ../shared/data/align")
    with timed("texts"):
        prepare_all()
    swedish()
    french()
    german()


if __name__ == "__main__":
    main()
