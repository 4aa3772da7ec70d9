"""What `nmt data check` finds: each rule with a case and a near case that is none, in one made-up corpus."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmt.cli import _run
from nmt.config import Config, DataConfig, parse_config
from nmt.data import judge as judging
from nmt.data.check import Report, check
from nmt.data.filters import filtered
from nmt.data.prepare import prepare
from nmt.data.report import as_html, as_json, escaped
from nmt.data.rules import FILTERS, RULES
from nmt.data.shifts import Stretch
from nmt.data.sources import read_chunks
from nmt.errors import ConfigError

Pair = tuple[str, str]
Figure = Callable[..., None]
PAIRS = 4_000
STRETCH = range(1_500, 1_560)  # from 0: targets here are one line late

NOUNS = {
    "dog": "Hund", "tree": "Baum", "man": "Mann", "fish": "Fisch", "king": "König", "table": "Tisch", "apple": "Apfel",
    "bird": "Vogel", "friend": "Freund", "teacher": "Lehrer", "letter": "Brief", "train": "Zug", "river": "Fluss",
    "mountain": "Berg", "coat": "Mantel", "chair": "Stuhl", "garden": "Garten", "key": "Schlüssel", "spoon": "Löffel",
    "moon": "Mond",
}  # fmt: skip
VERBS = {
    "sees": "sieht", "hears": "hört", "buys": "kauft", "paints": "malt", "loves": "liebt", "finds": "findet",
    "carries": "trägt", "needs": "braucht", "draws": "zeichnet", "knows": "kennt", "forgets": "vergisst",
    "hates": "hasst",
}  # fmt: skip
ADJECTIVES = {"old": "alte", "small": "kleine", "new": "neue", "quick": "schnelle", "good": "gute", "tired": "müde"}

# By rule: pairs that break it, and pairs that nearly do.
CASES: dict[str, list[Pair]] = {
    "blank both": [("", " \u200b")],
    "blank side": [("", "Der Hund schläft."), ("The dog sleeps.", "\t")],
    "encoding": [("The dog \ufffd sleeps.", "Der Hund schläft.")],
    "mojibake": [("The key is old.", "Der SchlÃ¼ssel ist alt."), ("The dogâ€™s key.", "Der Schlüssel des Hundes.")],
    "identical": [("The old man sees the dog.", "The old man sees the dog.")],
    "too long": [("dog tree man fish " * 400, "Hund Baum Mann Fisch " * 400)],
    "ratio": [("The dog.", "Der alte Hund sieht den kleinen Baum, und der Mann hört den schnellen Vogel im Garten.")],
    "script": [("The dog sleeps.", "Собака спит."), ("The man sees.", "人が見る。")],
    "swapped": [("Der alte Mann sieht der kleine Vogel.", "The old man sees the small bird.")],
    "language": [("The old dog sees the small bird.", "The old man, the small bird, the king and the moon.")],
    "numbers": [("The king buys 25 keys.", "Der König kauft 52 Schlüssel."), ("In 1999.", "In 1989.")],
    "placeholders": [
        ("The dog sees %s.", "Der Hund sieht s."),
        ("See https://example.org/a.", "Siehe https://example.org/b."),
        ("The key {name} is new.", "Der Schlüssel {Name} ist neu."),
    ],
    "markup": [("The <b>old</b> man.", "Der alte Mann."), ("The dog &nbsp; sleeps.", "Der Hund schläft.")],
    "garbage": [
        ("@@##$$%%^^&&**((", "Der Hund schläft."),
        ("The dog sleeps.", "Hund Hund Hund Hund Hund Hund Hund Hund Hund"),
        ("The dog sleeps.", "Der Huuuuuuuuuund schläft."),
        ("12 34 56 78 90 12 34", "12 34 56 78 90 12 34"),
    ],
}
NEAR: dict[str, list[Pair]] = {
    "mojibake": [("The name is João, NÃO.", "Der Name ist João, NÃO."), ("A value of Â.", "Ein Wert von Â.")],
    "identical": [("1.2.3", "1.2.3"), ("The dog sees Rex.", "Der Hund sieht Rex.")],
    "ratio": [("Yes.", "Aber ja!"), ("The dog sleeps well.", "Der Hund schläft sehr gut.")],
    "script": [("The key α is old.", "Der Schlüssel α ist alt."), ("1234", "1234")],
    "swapped": [("The king hears Mann.", "Der König hört Mann."), ("Tom", "Tom")],
    "numbers": [
        ("It costs 1,000.50.", "Es kostet 1.000,50."),
        ("It costs 3,500.", "Es kostet dreitausendfünfhundert."),
    ],
    "placeholders": [("The %1$s sees {0}.", "{0} sieht %1$s."), ("100 % sure", "100% sicher")],
    "markup": [("The <b>old</b> man.", "Der <b>alte</b> Mann."), ("3 < 4 & 5 > 4", "3 < 4 und 5 > 4")],
    "garbage": [
        ("It is 3:30.", "Es ist 3:30."),
        ("The dog, the man, the king and the moon sleep.", "Wow... (sehr) gut!"),
    ],
}


def sentences(count: int, seed: int) -> list[Pair]:
    """Distinct pairs of a small grammar, word for word."""
    rng, pairs = random.Random(seed), dict[str, str]()
    while len(pairs) < count:
        words = [rng.choice(list(kind)) for kind in (ADJECTIVES, NOUNS, VERBS, ADJECTIVES, NOUNS)]
        german = [kind[w] for kind, w in zip((ADJECTIVES, NOUNS, VERBS, ADJECTIVES, NOUNS), words, strict=True)]
        a, b, verb, c, d = words
        e, f, german_verb, g, h = german
        pairs.setdefault(f"The {a} {b} {verb} the {c} {d}.", f"Der {e} {f} {german_verb} der {g} {h}.")
    return list(pairs.items())


def write(folder: Path, name: str, pairs: list[Pair]) -> None:
    for side, language in enumerate(("en", "de")):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (folder / f"{name}.{language}").write_bytes(text.encode("utf-8", "surrogateescape"))


def config(folder: Path, **data: Any) -> DataConfig:
    return DataConfig.model_validate({"dir": str(folder), "train": ["train"], **data})


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report, dict[Pair, int]]:
    """A corpus with a shifted stretch, repetitions, all cases and near cases; its report; the line of each case."""
    folder = tmp_path_factory.mktemp("check")
    pairs = sentences(PAIRS, 1)
    late = [pairs[i][1] for i in STRETCH]
    for place, i in enumerate(STRETCH):
        pairs[i] = (pairs[i][0], late[place - 1])
    write(folder, "valid", [pairs[10], (pairs[11][0], "Etwas anderes."), ("Not there.", "Nicht da.")])
    write(folder, "test", [pairs[12]])
    pairs += [pairs[20], (pairs[21][0], "Ein anderer Satz."), ("Another sentence.", pairs[22][1])]
    odd = [pair for kind in (CASES, NEAR) for cases in kind.values() for pair in cases]
    where = {pair: len(pairs) + number for number, pair in enumerate(odd, 1)}
    pairs += odd
    pairs += [("The\u2028dog\x07 sleeps.", "Der Hund\x85schläft.\r"), ("The \udcff dog.", "Der Hund.")]
    write(folder, "train", pairs)
    with (folder / "bad.tsv").open("w") as bad:
        data = config(folder, valid="valid")
        report = check(data, test=config(folder, train="test").train[0], bad=bad.write)
    return folder, report, where


def lines(report: Report, rule: str) -> list[int]:
    return report.findings[rule].lines if rule in report.findings else []


@pytest.mark.parametrize("rule", CASES)
def test_each_rule_finds_its_cases(planted: tuple[Path, Report, dict[Pair, int]], rule: str) -> None:
    _, report, where = planted
    assert [pair for pair in CASES[rule] if where[pair] not in lines(report, rule)] == []


@pytest.mark.parametrize("rule", NEAR)
def test_no_rule_finds_what_is_only_like_its_cases(planted: tuple[Path, Report, dict[Pair, int]], rule: str) -> None:
    _, report, where = planted
    assert [pair for pair in NEAR[rule] if where[pair] in lines(report, rule)] == []


def test_plain_pairs_are_left_in_peace(planted: tuple[Path, Report, dict[Pair, int]], figure: Figure) -> None:
    _, report, _ = planted
    usual = {"duplicate", "source again", "target again", "pair in valid", "source in valid", "pair in test"}
    counts = {
        rule: sum(line <= PAIRS and line - 1 not in STRETCH for line in finding.lines)
        for rule, finding in report.findings.items()
        if rule not in usual
    }
    figure(
        "check_false_alarms",
        f"{sum(counts.values())} of {PAIRS - len(STRETCH):,} plain pairs",
        "0",
        not any(counts.values()),
    )


def test_a_shifted_stretch_is_located(planted: tuple[Path, Report, dict[Pair, int]], figure: Figure) -> None:
    _, report, _ = planted
    (stretch,) = report.stretches
    asked = (STRETCH.start + 1, STRETCH.stop, 1)
    found = (stretch.start, stretch.end, stretch.shift)
    near = abs(found[0] - asked[0]) <= 2 and abs(found[1] - asked[1]) <= 2 and found[2] == 1
    figure("check_shifted_stretch", found, f"{asked} but for 2 lines", near)
    assert str(Stretch(12_001, 12_950, 1, 9.0)) == "lines 12,001-12,950: the target is 1 line late"
    assert str(Stretch(3, 4, -2, 9.0)) == "lines 3-4: the target is 2 lines early"


def test_overlap_is_counted(planted: tuple[Path, Report, dict[Pair, int]], figure: Figure) -> None:
    """D5."""
    _, report, _ = planted
    overlap = {
        rule: lines(report, rule) for rule in ("pair in valid", "source in valid", "pair in test", "source in test")
    }
    asked = {"pair in valid": [11], "source in valid": [12], "pair in test": [13], "source in test": []}
    figure("check_overlap", f"{sum(map(len, overlap.values()))} shared, by line and kind", "3", overlap == asked)


def test_what_is_repeated(planted: tuple[Path, Report, dict[Pair, int]]) -> None:
    _, report, _ = planted
    assert lines(report, "duplicate") == [PAIRS + 1]
    assert PAIRS + 2 in lines(report, "source again") and PAIRS + 1 not in lines(report, "source again")
    assert PAIRS + 3 in lines(report, "target again")


def test_what_reading_mends_is_found_in_the_bytes(planted: tuple[Path, Report, dict[Pair, int]]) -> None:
    _, report, where = planted
    last = report.pairs
    assert last - 1 in lines(report, "separators") and last - 1 in lines(report, "controls")
    assert where[CASES["blank side"][1]] in lines(report, "separators")  # a tab
    assert last in lines(report, "encoding")
    assert lines(report, "controls") == [last - 1]


def test_every_line_found_is_written(planted: tuple[Path, Report, dict[Pair, int]]) -> None:
    folder, report, _ = planted
    rows = [row.split("\t") for row in (folder / "bad.tsv").read_text().split("\n")[:-1]]
    for rule, finding in report.findings.items():
        assert finding.count == sum(row[3] == rule for row in rows)
        assert set(map(str, finding.lines)) <= {row[1] for row in rows if row[3] == rule}
    numbers = [int(row[1]) for row in rows]
    assert numbers == sorted(numbers)
    sources, targets = (
        (folder / f"train.{language}").read_bytes().decode("utf-8", "replace").split("\n") for language in ("en", "de")
    )
    shown = [row for row in rows if sources[int(row[1]) - 1].isprintable() and targets[int(row[1]) - 1].isprintable()]
    assert len(shown) > 50
    assert all(sources[int(row[1]) - 1] == row[4] and targets[int(row[1]) - 1] == row[5] for row in shown)


def test_a_corpus_that_is_none_is_doubted(tmp_path: Path) -> None:
    pairs = sentences(600, 5)
    write(tmp_path, "train", pairs)
    assert check(config(tmp_path)).doubts == []  # the control
    sources, targets = zip(*pairs, strict=True)
    write(tmp_path, "train", list(zip(sources, random.Random(1).sample(targets, len(targets)), strict=True)))
    assert "do not look like translations" in check(config(tmp_path)).doubts[0]
    write(tmp_path, "train", list(zip(targets, sources, strict=True)))
    assert [doubt[:36] for doubt in check(config(tmp_path)).doubts] == [
        "the source is called en, and looks l",
        "the target is called de, and looks l",
    ]


def test_text_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = sentences(50, 5)
    write(tmp_path, "train", pairs)
    paths = ["--src", tmp_path / "train.en", "--tgt", tmp_path / "train.de"]
    for option in ("--write-bad", "--json", "--html"):
        assert _run(["data", "check", *map(str, paths), option, str(tmp_path / "train.en")], debug=False) == 2
    for name, tgt_lang in (("train", "de"), ("other", "en")):
        with pytest.raises(ConfigError, match=r"is text that is read|both languages are called en"):
            prepare(recipe(tmp_path, tgt_lang=tgt_lang), tmp_path / "cache", lambda _: None, text_out=tmp_path / name)
    assert "is text that is read" in capsys.readouterr().err
    assert (tmp_path / "train.en").read_text().count("\n") == 50


def test_the_report_as_json_and_html(planted: tuple[Path, Report, dict[Pair, int]]) -> None:
    _, report, _ = planted
    whole = json.loads(as_json(report))
    assert whole["pairs"] == report.pairs and whole["format_version"] == 1
    assert whole["misaligned_stretches"][0]["target_late_by"] == 1
    assert {"count", "share", "lines", "excerpts", "severity", "meaning", "way_out"} == set(
        whole["findings"]["numbers"]
    )
    assert sum(whole["lengths"]["src"]) == report.pairs
    page = as_html(report)
    assert "&lt;b&gt;old" in page and "<b>" not in page
    assert page.count("<svg") == 3 and not re.search(r"(src|href)=|<script|@import|url\(", page)


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    """Neither the page nor the terminal is driven by what a corpus holds."""
    attack = "<script>alert(1)</script>\x1b]0;owned\x07<img src=x onerror=alert(1)>\u202e \"'>{0}"
    write(tmp_path, "train", [(attack, attack + "2"), ("a", "b")])
    report = check(config(tmp_path))
    assert report.findings["controls"].lines == [1]
    page = as_html(report)
    assert "<script" not in page and "<img" not in page and "\x1b" not in page
    assert escaped("a\x1b[31m\u202e") == "a\\x1b[31m\\u202e"


HOSTILE = {
    "empty": (b"", b""),
    "one line": (b"a", b"b\n"),
    "blanks": (b"\n" * 3000, b" \n" * 3000),
    "one long line": (b"x" * (1 << 20), b"y " * (1 << 19) + b"\n"),
    "NULs": (b"\0" * 1000 + b"\n\0\n", b"a\n\0\0b\n"),
    "right to left": ("שלום עולם\nمرحبا بالعالم\n".encode(), "‮abc\nד\u0301\u0301\n".encode()),
    "invalid": (b"\xff\xfe\n\xed\xa0\x80\n", b"\xc3\n\xf0\x9f\n"),
    "astral": ("🙂🙂🙂🙂🙂🙂🙂🙂🙂\n𠀀𠀁\n".encode(), "👩‍👩‍👧\n\u0301\u0301\u0301\n".encode()),
    "uneven": (b"a\nb\nc\n", b"a\nb\n"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_text_breaks_it(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    for language, content in zip(("en", "de"), HOSTILE[kind], strict=True):
        (tmp_path / f"a.{language}").write_bytes(content)
    paths = ["--src", str(tmp_path / "a.en"), "--tgt", str(tmp_path / "a.de"), "--threads", "1"]
    reports = ["--html", str(tmp_path / "r.html"), "--json", str(tmp_path / "r.json")]
    code = _run(["data", "check", *paths, *reports], debug=False)
    out, err = capsys.readouterr()
    assert code == 3 and "training refuses" in out, out + err  # they are few, if nothing else
    assert "Traceback" not in err and "\x1b" not in out and "\0" not in out
    json.loads((tmp_path / "r.json").read_text())


def test_uneven_files_are_judged_as_far_as_both_go(tmp_path: Path) -> None:
    """And the line where one was lost is found."""
    pairs = sentences(2000, 3)
    write(tmp_path, "train", pairs)
    german = [tgt for _, tgt in pairs]
    del german[1200]
    (tmp_path / "train.de").write_text("".join(f"{line}\n" for line in german))
    report = check(config(tmp_path))
    assert "2,000 lines" in report.refusals[0] and "1,999" in report.refusals[0]
    (stretch,) = report.stretches
    assert report.pairs == 1999 and stretch.shift == -1
    assert abs(stretch.start - 1202) <= 2 and stretch.end >= 1997


def test_several_sources_count_their_own_lines(tmp_path: Path) -> None:
    write(tmp_path, "one", sentences(50, 1))
    write(tmp_path, "two", [*sentences(30, 2), ("", "x")])
    report = check(config(tmp_path, train=["one", "two"]))
    (line,) = lines(report, "blank side")
    name, number = report.place(line)
    assert name.endswith("two.de") and number == 31 and line == 81


def test_processes_find_the_same(
    planted: tuple[Path, Report, dict[Pair, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, report, _ = planted
    monkeypatch.setattr(judging, "_IN_PROCESSES", judging._PORTION_PAIRS)
    again = check(config(folder, valid="valid"), test=config(folder, train="test").train[0], workers=2)
    assert as_json(again) == as_json(report)


def recipe(folder: Path, **data: Any) -> Config:
    tables = {
        "data": {"dir": str(folder), "train": "train", "valid": "valid", **data},
        "tokenizer": {"vocab_size": 500},
        "training": {"max_updates": 1},
    }
    return parse_config(tables, "x")


def test_filters_drop_and_count_what_they_are_told_to(
    planted: tuple[Path, Report, dict[Pair, int]], tmp_path: Path
) -> None:
    """Each pair counts once; the text written is what the token cache holds; without filters nothing changes."""
    folder, report, _ = planted
    said: list[str] = []
    plain = prepare(recipe(folder), tmp_path / "cache", said.append)
    assert any("1 training pairs are in the validation text" in line for line in said)
    chosen = ["identical", "swapped", "misaligned", "garbage", "numbers"]
    some = prepare(recipe(folder, filters=chosen), tmp_path / "cache", said.append, text_out=tmp_path / "kept")
    before, after = plain.counts["train"], some.counts["train"]
    assert not set(chosen) & set(before)
    assert after["misaligned"] == report.findings["misaligned"].count
    assert after["read"] == after["kept"] + sum(n for rule, n in after.items() if rule not in ("read", "kept"))
    assert all(after[rule] for rule in chosen)
    kept = [(tmp_path / f"kept.{language}").read_text("utf-8").split("\n")[:-1] for language in ("en", "de")]
    assert len(kept[0]) == len(kept[1]) == after["kept"]
    pairs = set(zip(*kept, strict=True))
    assert not pairs & set(CASES["numbers"]) and pairs >= set(NEAR["numbers"])


def test_filters_are_the_rules_that_may_drop(planted: tuple[Path, Report, dict[Pair, int]]) -> None:
    folder, report, _ = planted
    assert set(FILTERS) <= set(RULES)
    with pytest.raises(ConfigError, match="filters"):
        recipe(folder, filters=["nonsense"])
    data = config(folder, filters=list(FILTERS))

    keep, counts = filtered(lambda: read_chunks(data.train[0], data), data, np.ones(report.pairs, bool), 1)
    assert counts.total() == report.pairs - keep.sum() and counts["misaligned"] > 50


def test_train_warns_of_many_untranslated_pairs(tmp_path: Path) -> None:
    write(tmp_path, "valid", sentences(5, 9))
    write(tmp_path, "train", [*sentences(80, 1), *((f"same {n}", f"same {n}") for n in range(20))])
    said: list[str] = []
    prepare(recipe(tmp_path), tmp_path / "cache", said.append)
    assert any("20 of 100 training pairs have the same text on both sides" in line for line in said)


def test_the_command_explains_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "train", sentences(30, 1))
    for arguments, said in (
        (["--src", "a.en"], "Give either a CONFIG"),
        (["--src", "a.en", "--tgt", "a.de", "--test-src", "b.en"], "--test-src goes with --test-tgt"),
        (["--src", str(tmp_path / "no.en"), "--tgt", str(tmp_path / "train.de")], "No such file"),
    ):
        assert _run(["data", "check", *arguments], debug=False) in (2, 3)
        assert said in capsys.readouterr().err


def test_a_tokenizer_is_judged(planted: tuple[Path, Report, dict[Pair, int]], tmp_path: Path) -> None:
    folder, _, _ = planted
    tokenizer = prepare(recipe(folder), tmp_path / "cache", lambda text: None).tokenizer
    write(tmp_path, "train", [("The dog sleeps.", "สุนัขนอนหลับ")] * 3)
    tokens = check(config(tmp_path), tokenizer=tokenizer).tokens
    assert tokens["source"]["unknown or byte pieces, %"] < 5 < 50 < tokens["target"]["unknown or byte pieces, %"]


def test_languages_are_identified(tmp_path: Path) -> None:
    pytest.importorskip("py3langid")
    french = "Le vieux professeur achète une nouvelle maison au bord de la rivière."
    write(tmp_path, "train", [*sentences(50, 1), ("The old teacher buys a new house.", french), ("Tom", "Tom")])
    report = check(config(tmp_path), langid=True)
    assert 51 in lines(report, "language") and 52 not in lines(report, "language")
    with pytest.raises(ConfigError, match="does not know the language 'qq'"):
        check(
            config(tmp_path, src_lang="en", tgt_lang="qq", train=[{"src": "train.en", "tgt": "train.de"}]), langid=True
        )


def test_all_rules_are_documented() -> None:
    page = (Path(__file__).parents[2] / "data" / "README.md").read_text("utf-8")
    for rule in RULES.values():
        in_filters = "yes" if rule.name in FILTERS else ""
        assert f"| {rule.name} | {rule.severity} | {rule.meaning} | {in_filters} |" in page


def test_short_lines_of_a_language_are_not_outvoted_by_a_few_long_ones() -> None:
    japanese = ["彼は犬を見た。", "今日は寒いです。", "これは本です。"] * 100
    english = ["The old man did not see any dogs in the garden today."] * 6
    mixed = random.Random(1).sample(japanese + english, 306)
    assert judging.language_of(mixed, "ja") == "" and judging.language_of(mixed, "en") == "ja"
