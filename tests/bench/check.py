"""What `nmt data check` finds of mistakes planted in real text, its speed and its memory.

Usage: check.py [GIGABYTES]. The corpus is ../shared/data/mixed, by which the thresholds were set, and two others, for
the mistakes alone; the file for the memory is made of it, with variations.
"""

import json
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from figures import REAL_DATA, ROOT, figure_line, nmt, private_memory

Lines = list[str]
Plant = Callable[[Lines, Lines, random.Random], set[int]]
SHARE = 0.01
STRETCHES = 10
HELD_OUT = (("multi30k", "en", "de"), ("tanaka_enja", "en", "ja"))
RULES = {
    "shifted": {"misaligned"},
    "swapped": {"swapped"},
    "duplicated": {"duplicate"},
    "garbage": {"garbage", "markup"},
}


def shifted(src: Lines, tgt: Lines, rng: random.Random) -> set[int]:
    """Stretches of equal size whose target is one line late."""
    size = round(len(src) * SHARE / STRETCHES)
    lines: set[int] = set()
    for number in range(STRETCHES):  # one in each tenth, so that none meets another
        tenth = len(src) // STRETCHES
        start = number * tenth + rng.randrange(tenth - size)
        tgt[start : start + size] = [tgt[start + size - 1], *tgt[start : start + size - 1]]
        lines |= set(range(start + 1, start + size + 1))
    return lines


def swapped(src: Lines, tgt: Lines, rng: random.Random) -> set[int]:
    """Single pairs whose sides are exchanged; not those that are the same on both."""
    places = [i for i in _some(src, rng) if src[i].casefold() != tgt[i].casefold()]
    for i in places:
        src[i], tgt[i] = tgt[i], src[i]
    return {i + 1 for i in places}


def duplicated(src: Lines, tgt: Lines, rng: random.Random) -> set[int]:
    """Single pairs replaced by one that stands before."""
    places = [i for i in _some(src, rng) if i]
    kept = sorted(set(range(len(src))) - set(places))
    for i in places:
        before = rng.choice(kept[: max(1, i // 2)])
        src[i], tgt[i] = src[before], tgt[before]
    return {i + 1 for i in places}


def garbage(src: Lines, tgt: Lines, rng: random.Random) -> set[int]:
    """One side replaced: symbols, a phrase again and again, digits, remains of HTML, bytes of a table."""
    places = _some(src, rng)
    for number, i in enumerate(places):
        side = src if rng.random() < 0.5 else tgt
        words = side[i].split()
        phrase = " ".join(words[:3])
        kinds = (
            lambda: "".join(rng.choices("#$%&*+-/<=>@[]^_{|}~§±•■", k=rng.randint(8, 60))),
            lambda p=phrase: " ".join([p] * rng.randint(6, 12)),
            lambda: " ".join(f"{rng.randrange(10**6)}.{rng.randrange(100)}" for _ in range(rng.randint(2, 9))),
            lambda t=side[i]: f'<td class="c{rng.randrange(9)}"><a href="?p={rng.randrange(99)}">{t}</a></td>&nbsp;',
            lambda: rng.choice("-=_.*?!") * rng.randint(8, 60),
        )
        side[i] = kinds[number % len(kinds)]()
    return {i + 1 for i in places}


def _some(src: Lines, rng: random.Random) -> list[int]:
    return sorted(rng.sample(range(len(src)), round(len(src) * SHARE)))


def main() -> None:
    """Plant, check, and print the figures."""
    gigabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    src, tgt = (_read(REAL_DATA / "mixed" / f"train.{language}") for language in ("en", "de"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _measure_plants(folder, "", src, tgt, ("en", "de"))
        for corpus, *languages in HELD_OUT:
            sides = [_read(REAL_DATA / corpus / f"train.{language}") for language in languages]
            _measure_plants(folder, f"{corpus}_", *sides, languages)
        _write(folder / "a.en", src)
        _write(folder / "a.de", tgt)
        _measure_speed(folder, len(src))
        _measure_memory(folder, src, tgt, gigabytes)


def _measure_plants(folder: Path, corpus: str, src: Lines, tgt: Lines, languages: Sequence[str]) -> None:
    before = _found(folder, src, tgt, languages)
    for plant in (shifted, swapped, duplicated, garbage):
        spoilt_src, spoilt_tgt = list(src), list(tgt)
        planted = plant(spoilt_src, spoilt_tgt, random.Random(1))
        _compare(plant.__name__, corpus, planted, _found(folder, spoilt_src, spoilt_tgt, languages), before)


def _compare(
    name: str, corpus: str, planted: set[int], found: dict[str, set[int]], before: dict[str, set[int]]
) -> None:
    flagged = set().union(*(found.get(rule, set()) for rule in RULES[name]))
    known = set().union(*(before.get(rule, set()) for rule in RULES[name]))
    right, new = len(planted & flagged), flagged - (known - planted)
    recall, precision, of_new = right / len(planted), right / max(1, len(flagged)), right / max(1, len(new))
    shown = f"{precision:.3f}, and {of_new:.3f} without the {len(known):,} found in the text as it was"
    print(figure_line(f"check_{corpus}{name}_precision", shown, ">= 0.95 without", of_new >= 0.95))
    shown = f"{recall:.3f} of {len(planted):,}"
    print(figure_line(f"check_{corpus}{name}_recall", shown, ">= 0.95", recall >= 0.95), flush=True)


def _found(folder: Path, src: Lines, tgt: Lines, languages: Sequence[str]) -> dict[str, set[int]]:
    """The lines of each rule."""
    src_path, tgt_path = (folder / f"a.{language}" for language in languages)
    _write(src_path, src)
    _write(tgt_path, tgt)
    nmt("data", "check", "--src", src_path, "--tgt", tgt_path, "--write-bad", folder / "bad", "--quiet")
    found: dict[str, set[int]] = {}
    for row in (folder / "bad").read_text("utf-8").split("\n")[:-1]:
        _, line, _, rule, _, _ = row.split("\t")
        found.setdefault(rule, set()).add(int(line))
    return found


def _measure_speed(folder: Path, pairs: int) -> None:
    rates = []
    for options in ([], ["--langid"]):
        start = _cpu_seconds()
        paths = ("--src", folder / "a.en", "--tgt", folder / "a.de")
        nmt("data", "check", *paths, "--threads", 1, "--quiet", *options)
        rates.append(pairs / (_cpu_seconds() - start))
    shown = f"{rates[0]:,.0f}; {rates[1]:,.0f} with --langid"
    print(figure_line("check_pairs_per_second_a_core", shown, "no target", True), flush=True)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _measure_memory(folder: Path, src: Lines, tgt: Lines, gigabytes: float) -> None:
    """Private memory of all processes for a megabyte of text and for gigabytes, both sides together.

    What a pair costs is told against 20 MB: a megabyte is judged without other processes.
    """
    peaks, counts = [], []
    for size in (1e6, 20e6, gigabytes * 1e9):
        count = _write_much(folder, src, tgt, size)
        command = [
            sys.executable,
            "-m",
            "nmt",
            "data",
            "check",
            "--threads",
            "2",
            "--json",
            str(folder / "report.json"),
        ]
        command += ["--src", str(folder / "a.en"), "--tgt", str(folder / "a.de")]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT)
        with private_memory(process.pid, every_s=0.1) as peak_mb:
            process.wait()
        if process.returncode or json.loads((folder / "report.json").read_text())["pairs"] != count:
            sys.exit(f"nmt data check ended with {process.returncode}")
        peaks.append(peak_mb[0])
        counts.append(count)
    a_pair = (peaks[2] - peaks[1]) * 1e6 / (counts[2] - counts[1])
    small, middle, large = (f"{peak:,.0f}" for peak in peaks)
    shown = f"{large} MB for {gigabytes:g} GB, {middle} for 20 MB, {small} for 1 MB: {a_pair:.0f} bytes a pair"
    print(figure_line("check_private_memory", shown, "<= 60 bytes a pair", a_pair <= 60), flush=True)


def _write_much(folder: Path, src: Lines, tgt: Lines, size: float) -> int:
    """Repeat the corpus with variations until it has `size` bytes; the number of pairs."""
    written = pairs = 0
    with (folder / "a.en").open("wb") as src_file, (folder / "a.de").open("wb") as tgt_file:
        for number in range(10**6):
            for start in range(0, len(src), 1000):
                for file, lines in ((src_file, src), (tgt_file, tgt)):
                    text = "".join(f"{line} {number}\n" for line in lines[start : start + 1000])
                    written += file.write(text.encode())
                pairs += len(src[start : start + 1000])
                if written >= size:
                    return pairs
    raise AssertionError


def _read(path: Path) -> Lines:
    return path.read_text("utf-8").split("\n")[:-1]


def _write(path: Path, lines: Lines) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


if __name__ == "__main__":
    main()
