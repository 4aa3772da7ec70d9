"""The command line of decoding: options, JSON lines, prefixes, given translations, pipes."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

import test_cli
import tiny
from nmt.cli.app import app
from nmt.cli.streams import gather, parse_object, to_json
from nmt.config import DecodingConfig
from nmt.decoding.translator import Translator
from nmt.text.lines import is_blank
from test_cli import Nmt, refused, started

Figure = Callable[..., None]
run = test_cli.run
LINES = tiny.sentences(12)[0]
STDIN = "".join(f"{line}\n" for line in LINES).encode()
RESULT = ["translation", "score", "log_prob", "tokens", "token_log_probs"]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(tiny.random_bundle(num_decoder_layers=2), tmp_path_factory.mktemp("model") / "bundle")


def own_fields(line: str) -> dict[str, Any]:
    """Of a line of JSON that cannot be translated, its own "error" excepted; none if it is no object."""
    try:
        return {key: value for key, value in parse_object(line).items() if key != "error"}
    except ValueError:
        return {}


def objects(text: str) -> list[dict[str, Any]]:
    """JSON lines, read strictly."""

    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} was written")

    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def jsonl(*records: object) -> bytes:
    return "".join(f"{json.dumps(record)}\n" for record in records).encode()


# Options


def test_every_key_of_decoding_is_an_option() -> None:
    command = typer.main.get_command(app).commands["translate"]  # type: ignore[attr-defined]
    assert set(DecodingConfig.model_fields) <= {parameter.name for parameter in command.params}


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--beam-size", "0", "1 ≤ beam_size ≤ 1000"),
        ("-b", "1001", "1 ≤ beam_size ≤ 1000"),
        ("--n-best", "0", "1 ≤ n_best ≤ 1000"),
        ("--length-penalty", "-1", "0.0 ≤ length_penalty ≤ 10.0"),
        ("--length-penalty-type", "wu", "'gnmt' or 'power'"),
        ("--coverage-penalty", "11", "0.0 ≤ coverage_penalty ≤ 10.0"),
        ("--max-length-ratio", "0", "0.0 < max_length_ratio ≤ 100.0"),
        ("--max-length-extra", "0", "1 ≤ max_length_extra ≤ 10000"),
        ("--max-length", "0", "1 ≤ max_length ≤ 100000"),
        ("--min-length", "-1", "0 ≤ min_length ≤ 1000"),
        ("--min-length-ratio", "-1", "0.0 ≤ min_length_ratio ≤ 100.0"),
        ("--no-repeat-ngram", "-1", "0 ≤ no_repeat_ngram ≤ 100"),
        ("--repetition-penalty", "0", "0.0 < repetition_penalty ≤ 100.0"),
        ("--temperature", "0", "0.0 < temperature ≤ 100.0"),
        ("--temperature", "nan", "0.0 < temperature ≤ 100.0"),
        ("--top-k", "-1", "0 ≤ top_k ≤ 1000000"),
        ("--top-p", "1.5", "0.0 < top_p ≤ 1.0"),
        ("--seed", "-1", "0 ≤ seed ≤ 2147483647"),
        ("--beam-size", "four", "valid int"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_is_loaded(run: Nmt, option: str, value: str, allowed: str) -> None:
    refused(run("translate", "-m", "nowhere", option, value), 2, option, allowed)


def test_options_that_do_not_go_together(run: Nmt, model: Path) -> None:
    refused(run("translate", "-m", "nowhere", "--n-best", 2), 2, "--n-best 2 needs --format jsonl")
    refused(run("translate", "-m", "nowhere", "--format", "jsonl", "--prefix", "p"), 2, "--prefix", '"prefix"')
    refused(run("translate", "-m", model, "--format", "jsonl", "--n-best", 9), 2, "n_best = 9", "beam_size")
    refused(run("translate", "-m", model, "--no-sample", "--top-k", 3), 2, "top_k", "sample")
    refused(run("translate", "-m", model, "--format", "xml"), 2, "--format")
    refused(run("translate", "-m", model, "--precision", "fp8"), 2, "--precision fp8", "fp32")
    refused(run("score", "-m", "nowhere", "--src", "s"), 2, "--tgt FILE")
    refused(run("score", "-m", "nowhere", "--length-penalty", "-1"), 2, "--length-penalty", "0.0 ≤")


@pytest.mark.parametrize(
    ("options", "decoding"),
    [
        ("--beam-size 1", {"beam_size": 1}),
        ("-b 3 --length-penalty 2 --length-penalty-type power", {"beam_size": 3, "length_penalty": 2.0,
         "length_penalty_type": "power"}),
        ("--coverage-penalty 3", {"coverage_penalty": 3.0}),
        ("--max-length 2 --min-length 2", {"max_length": 2, "min_length": 2}),
        ("--sample --min-length-ratio 2", {"sample": True, "min_length_ratio": 2.0}),
        ("--max-length-ratio 0.1 --max-length-extra 1", {"max_length_ratio": 0.1, "max_length_extra": 1}),
        ("--min-length 8 --no-repeat-ngram 1", {"min_length": 8, "no_repeat_ngram": 1}),
        ("--min-length 8 --repetition-penalty 3", {"min_length": 8, "repetition_penalty": 3.0}),
        ("--temperature 2", {"sample": True, "temperature": 2.0}),
        ("--top-k 5 --seed 7", {"sample": True, "top_k": 5, "seed": 7}),
        ("--sample --top-p 0.9", {"sample": True, "top_p": 0.9}),
    ],
)  # fmt: skip
def test_options_are_the_keys_of_decoding(run: Nmt, model: Path, options: str, decoding: dict[str, Any]) -> None:
    code, out, err = run("translate", "-m", model, *options.split(), stdin=STDIN)
    assert (code, err) == (0, "")
    assert out.splitlines() == Translator(model, decoding=decoding).translate(LINES)
    if "coverage" not in options:  # which changes scores, and seldom which translation is best
        assert out.splitlines() != Translator(model).translate(LINES)


def test_the_bundle_gives_defaults_and_the_command_line_wins(run: Nmt, model: Path, tmp_path: Path) -> None:
    keys = {"sample": True, "temperature": 3.0, "n_best": 2}
    drawing = tiny.save(tiny.random_bundle(num_decoder_layers=2, decoding=keys), tmp_path / "drawing")
    plain = run("translate", "-m", model, stdin=STDIN)[1]
    assert run("translate", "-m", drawing, "--no-sample", stdin=STDIN)[1] == plain
    drawn = run("translate", "-m", drawing, stdin=STDIN)
    assert drawn[0] == 0 and drawn[1] != plain and drawn[1].count("\n") == len(LINES)  # n_best of the bundle, in text
    assert all(len(each["n_best"]) == 2 for each in objects(
        run("translate", "-m", drawing, "--format", "jsonl", stdin=jsonl({"text": "dog"}))[1]
    ))  # fmt: skip


def test_how_it_is_computed_changes_no_text(run: Nmt, model: Path) -> None:
    plain = run("translate", "-m", model, stdin=STDIN)
    for options in ("--deterministic --num-workers 2 --batch-rows 4", "--line-buffered"):
        assert run("translate", "-m", model, *options.split(), stdin=STDIN) == plain
    exact = run("translate", "-m", model, "--precision", "fp32", stdin=STDIN)[1]
    assert exact.splitlines() == Translator(model, precision="fp32").translate(LINES)


def test_several_models_translate_together(run: Nmt, model: Path, tmp_path: Path) -> None:
    other = tiny.save(tiny.random_bundle(seed=1, num_decoder_layers=2), tmp_path / "other")
    alone, twice, both = (
        run("translate", *models, stdin=STDIN)[1]
        for models in (("-m", model), ("-m", model, "-m", model), ("-m", model, "-m", other))
    )
    assert alone == twice != both
    assert both == "".join(f"{line}\n" for line in Translator([model, other]).translate(LINES))
    strange = tiny.save(tiny.random_bundle(joint=False), tmp_path / "strange")
    refused(run("translate", "-m", model, "-m", strange, stdin=STDIN), 2, "one and the same tokenizer")


def test_eval_takes_the_options_of_decoding(run: Nmt, model: Path, tmp_path: Path) -> None:
    (tmp_path / "src").write_bytes(STDIN)
    options = ("-b", 3, "--length-penalty", 2, "--precision", "fp32", "--deterministic", "--num-workers", 2)
    files = ("--src", tmp_path / "src", "--ref", tmp_path / "src", "--save-hyp", tmp_path / "hyp", "-q")
    assert run("eval", "-m", model, "-m", model, *files, *options)[0] == 0
    assert (tmp_path / "hyp").read_text() == run("translate", "-m", model, *options, stdin=STDIN)[1]
    refused(run("eval", "-m", model, *files, "-b", 0), 2, "--beam-size", "1 ≤ beam_size")


# Streams


def test_output_appears_complete_or_not_at_all(run: Nmt, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.write_text("before")
    (tmp_path / "p").write_text("der\n")
    broken = run("translate", "-m", model, "-o", file, "--prefix", tmp_path / "p", stdin=STDIN)
    refused(broken, 3, "has 1 line(s), stdin has more")
    assert file.read_text() == "before"
    out = run("translate", "-m", model, stdin=STDIN)[1]
    assert run("translate", "-m", model, "-o", file, stdin=STDIN) == (0, "", "")
    assert file.read_text() == out and sorted(path.name for path in tmp_path.iterdir()) == ["out", "p"]
    assert run("translate", "-m", model, "-i", file, "-o", file)[0] == 0  # in place
    assert file.read_text().count("\n") == len(LINES)
    assert run("translate", "-m", model, "-o", "/dev/null", stdin=STDIN) == (0, "", "")
    refused(run("translate", "-m", "nowhere", "-o", tmp_path), 4, "Cannot write")
    refused(run("translate", "-m", "nowhere", "-o", tmp_path / "no" / "out"), 4, "Cannot write")


def test_line_buffered_reads_no_line_ahead() -> None:
    def reads(line_buffered: bool) -> int:
        read = 0

        def lines() -> Iterator[int]:
            nonlocal read
            while read < 5:
                read += 1
                yield read

        next(iter(gather(lines(), 5, line_buffered)))
        return read

    assert reads(line_buffered=True) == 1
    assert reads(line_buffered=False) == 5  # the control


def test_a_program_that_writes_a_line_and_waits(model: Path, figure: Figure) -> None:
    lines = [json.dumps({"text": text}) for text in tiny.sentences(19)[0]] + [""]
    answered = 0
    with started("translate", "-m", model, "--format", "jsonl") as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        watch = threading.Timer(120, process.kill)
        watch.start()
        for line in lines:
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
            answered += process.stdout.readline().endswith(b"\n")
        process.stdin.close()
        assert process.stdout.read() == b"" and process.stderr.read() == b""
        watch.cancel()
    figure("round_trips", f"{answered} of {len(lines)}", "20 of 20", (answered, process.returncode) == (20, 0))


def test_head_ends_it_quietly(model: Path, figure: Figure) -> None:
    """Under an input that never ends, with several workers: no message, no hang; nothing waits for the last line."""
    nmt = (
        f"{sys.executable} -m nmt translate -m {model} -b 1 --max-length 2 --batch-rows 100 --num-workers 2 --threads 2"
    )
    script = f"yes 'the dog' | {nmt} | head -1; echo ${{PIPESTATUS[@]}}"
    process = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=200)
    translation, codes = process.stdout.splitlines()
    ended = (codes.split()[1:], process.stderr)
    figure("head_1", f"codes {codes}, stderr {process.stderr!r}", "nmt 0, nothing said", ended == (["0", "0"], ""))
    assert translation and codes.split()[0] != "0"  # yes was stopped: its output never ended


# Prefixes


def test_prefixes(run: Nmt, model: Path, tmp_path: Path) -> None:
    prefixes = [("der hund", "", "ein")[k % 3] for k in range(len(LINES))]
    file = tmp_path / "prefixes"
    file.write_text("".join(f"{prefix}\n" for prefix in prefixes))
    code, out, err = run("translate", "-m", model, "--prefix", file, stdin=STDIN)
    assert (code, err) == (0, "")
    translations, free = out.splitlines(), Translator(model).translate(LINES)
    assert all(line.startswith(prefix) for line, prefix in zip(translations, prefixes, strict=True))
    assert not any(line.startswith("der hund") for line in free)  # the control
    assert [t for t, p in zip(translations, prefixes, strict=True) if not p] == free[1::3]
    records = [{"text": line, "prefix": prefix} for line, prefix in zip(LINES, prefixes, strict=True)]
    asked = objects(run("translate", "-m", model, "--format", "jsonl", stdin=jsonl(*records))[1])
    assert [each["translation"] for each in asked] == translations


def test_prefixes_of_other_lines_are_refused(run: Nmt, model: Path, tmp_path: Path) -> None:
    source, file = tmp_path / "source", tmp_path / "prefixes"
    source.write_bytes(STDIN)
    for lines, said in (
        (11, f"{file} has 11 line(s), {source} has 12"),
        (14, f"{source} has 12 line(s), {file} has 14"),
    ):
        file.write_text("der\n" * lines)
        code, out, err = run("translate", "-m", model, "-i", source, "--prefix", file)
        assert code == 3 and said in err and out.count("\n") == min(lines, 12)
    refused(run("translate", "-m", model, "--prefix", tmp_path / "no", stdin=STDIN), 3, "Cannot read", "no")


# JSON lines


def test_an_object_comes_out_with_its_translation(run: Nmt, model: Path) -> None:
    record = {"id": 7, "text": "the dog sees", "score": "old", "more": {"a": [1, None, 2.5]}}
    code, out, err = run("translate", "-m", model, "--format", "jsonl", stdin=jsonl(record))
    assert (code, err) == (0, "")
    (answer,) = objects(out)
    assert list(answer) == ["id", "text", "score", "more", "translation", "log_prob", "tokens", "token_log_probs"]
    assert (answer["id"], answer["text"], answer["more"]) == (7, "the dog sees", {"a": [1, None, 2.5]})
    assert answer["translation"] == Translator(model).translate(["the dog sees"])[0]
    assert answer["tokens"][-1] == "</s>" and len(answer["tokens"]) == len(answer["token_log_probs"])
    assert sum(answer["token_log_probs"]) == pytest.approx(answer["log_prob"])
    penalty = ((5 + len(answer["tokens"])) / 6) ** DecodingConfig().length_penalty
    assert answer["score"] == pytest.approx(answer["log_prob"] / penalty)


def test_n_best(run: Nmt, model: Path) -> None:
    stdin = jsonl({"text": "the dog sees"}, {"text": ""})
    options = ("--format", "jsonl", "-b", 4, "--n-best", 3)
    first, blank = objects(run("translate", "-m", model, *options, stdin=stdin)[1])
    assert [list(each) for each in first["n_best"]] == [RESULT] * 3
    assert first["n_best"][0] == {key: first[key] for key in RESULT}
    scores = [each["score"] for each in first["n_best"]]
    assert scores == sorted(scores, reverse=True) and len({each["log_prob"] for each in first["n_best"]}) == 3
    nothing = {"translation": "", "score": None, "log_prob": None, "tokens": [], "token_log_probs": []}
    assert blank == {"text": "", **nothing, "n_best": []}


BAD = [
    "no json", "{", "[]", "7", "null", '"text"', "{}", '{"text": 7}', '{"text": null}', '{"text": "a", "prefix": 1}',
    '{"text": "a", "x": NaN}', '{"text": "a", "x": [-Infinity]}', '{"text": "a", "x": 1e999}', '{"text": "a"} {}',
    '{"text": "a", "x": ' + "9" * 5000 + "}", '{"text": "a", "x": ' + "[" * 200 + "]" * 200 + "}",
    '{"text": "a", "x": ' + "[" * 100_000 + "]" * 100_000 + "}", '{"text": "a\tb"}',
    '{"text": "' + "a" * 70_000 + '"}',
]  # fmt: skip
STRINGS = [
    "the dog", "", " ", "\u2028", "a\u2029b", "\x85", "\x00\x1b", "\ud800", "\udfff\ud800", "Grün 漢字 🐕", "\\u2028",
    "\r\n", '"', "\ufeff", "\u202e", "NaN", "x" * 300, "\u200b", "</s>", "▁",
]  # fmt: skip


def hostile(rng: random.Random) -> str:
    """A line of input that is hard to keep: bad, blank, or an object with odd strings, keys and values."""
    kind = rng.random()
    if kind < 0.2:
        return rng.choice(BAD[:-2]) if kind < 0.199 else rng.choice(BAD)
    if kind < 0.3:
        return rng.choice(["", " ", "\t", "\u200b", "\r"])

    def value(depth: int) -> object:
        simple = [rng.choice(STRINGS), rng.randint(-(10**30), 10**30), rng.uniform(-1e9, 1e9), 5e-324, -0.0, True, None]
        if depth and rng.random() < 0.4:
            nested = [value(depth - 1) for _ in range(rng.randint(0, 3))]
            return nested if rng.random() < 0.5 else dict(zip(STRINGS, nested, strict=False))
        return rng.choice(simple)

    record = {rng.choice(STRINGS) + str(k): value(3) for k in range(rng.randint(0, 4))}
    record["text"] = rng.choice(STRINGS)
    record |= {rng.choice(STRINGS): value(2) for _ in range(rng.randint(0, 2))}
    return json.dumps(record, ensure_ascii=rng.random() < 0.3).encode("utf-8", "replace").decode()


def test_hostile_json_lines_keep_their_places_and_fields(run: Nmt, model: Path, figure: Figure) -> None:
    rng = random.Random(1)
    lines = [hostile(rng) for _ in range(1000 - len(BAD))] + BAD
    rng.shuffle(lines)
    stdin = "".join(f"{line}\n" for line in lines).encode()
    options = ("--format", "jsonl", "-b", 1, "--max-length", 2)
    code, out, err = run("translate", "-m", model, *options, stdin=stdin)
    answers = out.splitlines()  # by every separator that Python knows
    assert code == 3 and out.count("\n") == len(answers) == len(lines)
    errors = kept = 0
    for line, answer in zip(lines, answers, strict=True):
        if is_blank(line):
            assert answer == ""
            continue
        (found,) = objects(answer)
        if line in BAD:
            assert found.pop("error") and found == own_fields(line)
            errors += 1
            continue
        record = json.loads(line)
        assert list(found) == [*record, *(key for key in RESULT if key not in record)]
        assert all(repr(found[key]) == repr(record[key]) for key in record if key not in RESULT)
        assert isinstance(found["translation"], str) and (found["score"] is None) == (found["tokens"] == [])
        kept += 1
    first = next(number for number, line in enumerate(lines, start=1) if line in BAD)
    assert err.count("warning: ") == 5 and f"warning: stdin, line {first}: " in err
    assert f"nmt: stdin: {errors} line(s) have no result, the first is line {first};" in err
    said = f"{len(answers)} lines of {len(lines)}: {kept} objects kept, {errors} errors, the rest blank"
    figure("hostile_json_lines", said, "1000 of 1000", kept > 500 and errors > 100)


def test_json_that_would_not_stay_one_line() -> None:
    """The negative control of the above: as Python writes it, a line breaks, or is no UTF-8."""
    record = {"text": "a\u2028b\x85c"}
    plain = json.dumps(record, ensure_ascii=False)
    assert len(plain.splitlines()) == 3 and len(to_json(record).splitlines()) == 1
    assert json.loads(to_json(record)) == record
    with pytest.raises(UnicodeEncodeError):
        json.dumps({"text": "\ud800"}, ensure_ascii=False).encode()
    assert json.loads(to_json({"text": "\ud800"}).encode()) == {"text": "\ud800"}
    assert to_json({"text": "Grün 漢字"}) == '{"text": "Grün 漢字"}'
    with pytest.raises(ValueError, match="JSON compliant"):
        to_json({"score": math.nan})


def test_quiet_leaves_the_error_alone(run: Nmt, model: Path) -> None:
    code, out, err = run(
        "translate", "-m", model, "--format", "jsonl", "-q", stdin=b'\xef\xbb\xbf{"text": "\xff"}\nx\n'
    )
    assert code == 3 and out.count("\n") == 2 and err.startswith("nmt: stdin: 1 line(s)") and err.count("\n") == 1


# Given translations


def score_and_search(
    run: Nmt, model: Path, sources: list[str], folder: Path, *options: object
) -> list[tuple[Any, Any]]:
    """What `translate` says of its own translations and `score` of the same, where the text has the same pieces."""
    stdin = jsonl(*({"text": text} for text in sources))
    said = objects(run("translate", "-m", model, "--format", "jsonl", *options, stdin=stdin)[1])
    (folder / "src").write_text("".join(f"{text}\n" for text in sources))
    (folder / "tgt").write_text("".join(f"{each['translation']}\n" for each in said))
    files = ("--src", folder / "src", "--tgt", folder / "tgt")
    options = options[2:]  # without the beam
    given = objects(run("score", "-m", model, "--format", "jsonl", *files, *options)[1])
    assert [each["tgt"] for each in given] == [each["translation"] for each in said]
    return [pair for pair in zip(said, given, strict=True) if pair[0]["tokens"] == pair[1]["tokens"]]


def difference(pairs: list[tuple[Any, Any]]) -> float:
    """The largest between two scores or log-probabilities, as a share of their size."""
    keys = ("score", "log_prob")
    return max(abs(said[key] - given[key]) / max(1.0, abs(said[key])) for said, given in pairs for key in keys)


def test_a_translation_scores_what_its_search_said(run: Nmt, model: Path, tmp_path: Path, figure: Figure) -> None:
    sources = list(dict.fromkeys(tiny.sentences(150)[0]))
    same = score_and_search(run, model, sources, tmp_path, "-b", 4, "--length-penalty", 1)
    measured = (
        f"{difference(same):.1e} of their size at most, in the {len(same)} of {len(sources)} with the same pieces"
    )
    figure("score_of_own_translation", measured, "<= 1e-6", difference(same) <= 1e-6 and len(same) >= 20)
    for said, given in same:
        assert given["token_log_probs"] == pytest.approx(said["token_log_probs"], abs=1e-5)
    greedy = score_and_search(run, model, sources[:50], tmp_path, "-b", 1, "--deterministic")
    measured = f"{difference(greedy)} in {len(greedy)}"
    figure("score_of_own_greedy_translation", measured, "0.0, deterministic", difference(greedy) == 0 and bool(greedy))
    scores = objects(run("score", "-m", model, "--format", "jsonl", "--length-penalty", 0, stdin="".join(
        f"{given['src']}\t{given['tgt']}\n" for _, given in same
    ).encode())[1])  # fmt: skip
    assert difference(list(zip((said for said, _ in same), scores, strict=True))) > 1e-3  # the control


def test_scores_of_files_and_of_pairs_from_stdin(run: Nmt, model: Path, tmp_path: Path) -> None:
    src, tgt = ["the dog", "", "a cat", "a\u2028cat"], ["der hund", "leer", "", "eine katze"]
    (tmp_path / "src").write_text("".join(f"{line}\n" for line in src))
    (tmp_path / "tgt").write_text("".join(f"{line}\n" for line in tgt))
    code, out, err = run("score", "-m", model, "--src", tmp_path / "src", "--tgt", tmp_path / "tgt")
    assert (code, err) == (0, "")
    lines = out.split("\n")
    assert len(lines) == 5 and lines[1:3] == ["", ""] and lines[4] == ""
    pairs = "".join(f"{s}\t{t}\n" for s, t in zip(src, tgt, strict=True)).encode()
    assert run("score", "-m", model, stdin=pairs) == (0, out, "")
    assert run("score", "-m", model, "-o", tmp_path / "out", stdin=pairs) == (0, "", "")
    assert (tmp_path / "out").read_text() == out
    records = objects(run("score", "-m", model, "--format", "jsonl", stdin=pairs)[1])
    assert [list(record) for record in records] == [[*RESULT[1:], "src", "tgt"]] * 4
    assert [(record["src"], record["tgt"]) for record in records] == list(zip(src, tgt, strict=True))
    assert [record["score"] is None for record in records] == [False, True, True, False]
    expected = [f"{record['score']:.6f}\t{record['log_prob']:.6f}" for record in (records[0], records[3])]
    assert [lines[0], lines[3]] == expected
    twice = run("score", "-m", model, "-m", model, stdin=pairs)[1].split()
    assert [float(x) for x in twice] == pytest.approx([float(x) for x in out.split()], abs=1e-5)


def test_pairs_that_are_none(run: Nmt, model: Path, tmp_path: Path) -> None:
    stdin = b"the dog\tder hund\tin column 3\n\nno pair\na\tein\n"
    code, out, err = run("score", "-m", model, stdin=stdin)
    assert code == 3 and [bool(line) for line in out.split("\n")] == [True, False, False, True, False]
    assert "warning: stdin, line 3: no TAB" in err and "nmt: stdin: 1 line(s) have no result" in err
    records = objects(run("score", "-m", model, "--format", "jsonl", stdin=stdin)[1])
    assert list(records[2]) == ["error"] and records[1]["score"] is None
    (tmp_path / "three").write_text("a\nb\nc\n")
    (tmp_path / "two").write_text("a\nb\n")
    for src, tgt in (("three", "two"), ("two", "three")):
        code, out, err = run("score", "-m", model, "--src", tmp_path / src, "--tgt", tmp_path / tgt)
        assert code == 3 and "two has 2 line(s)" in err and "three has 3" in err and out.count("\n") == 2
    refused(run("score", "-m", model, "--src", tmp_path / "no", "--tgt", tmp_path / "two"), 3, "Cannot read", "no")


def test_an_endless_input_is_never_held() -> None:
    """Windows read at most one window ahead, whatever an item is."""
    furthest = 0

    def endless() -> Iterator[dict[str, int]]:
        nonlocal furthest
        for furthest in count():
            yield {"number": furthest}

    windows = gather(endless(), 10, line_buffered=False)
    for number, window in zip(range(50), windows, strict=False):
        assert [item["number"] for item in window] == list(range(10 * number, 10 * number + 10))
        assert furthest <= 10 * number + 21


# Several processes


@pytest.mark.slow
@pytest.mark.parametrize("format", ["text", "jsonl"])
def test_processes_of_torchrun_share_a_file(format: str, model: Path, tmp_path: Path, figure: Figure) -> None:
    lines = [f"{LINES[number % len(LINES)]} {number}" for number in range(9000)]  # five windows
    lines[4000] = ""
    if format == "jsonl":
        lines = [json.dumps({"text": line, "note": "\u2028x" * 500}) for line in lines]
        lines[5000] = "no JSON"
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = ["translate", "-m", model, "-i", tmp_path / "in", "-b", "1", "--max-length", "3", "--format", format]
    one = subprocess.run([sys.executable, "-m", "nmt", *command, "-o", tmp_path / "one"], capture_output=True)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "nmt"]
    two = subprocess.run([*torchrun, *command], capture_output=True, timeout=280)
    assert one.returncode == (3 if format == "jsonl" else 0), one.stderr
    assert bool(two.returncode) == bool(one.returncode), two.stderr
    expected = (tmp_path / "one").read_bytes().splitlines(keepends=True)
    found = two.stdout.splitlines(keepends=True)
    differing = sum(a != b for a, b in zip(expected, found, strict=True))
    figure(f"torchrun_translate_{format}", f"{differing} of {len(found)} lines differ", "0 of 9000", not differing)


def test_torchrun_wants_files(run: Nmt, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    (tmp_path / "in").write_text("a\n")
    refused(run("translate", "-m", model, stdin=STDIN), 2, "instead of stdin")
    refused(run("translate", "-m", model, "-i", tmp_path / "in", "--line-buffered"), 2, "no --line-buffered")
    refused(run("score", "-m", model, stdin=STDIN), 2, "instead of stdin")
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=("a\n",), daemon=True)
    writer.start()
    refused(run("translate", "-m", model, "-i", tmp_path / "pipe"), 2, "instead of stdin or pipes")


@pytest.mark.slow
def test_all_processes_of_torchrun_end_with_their_reader(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("a b c\n" * 50_000)
    torchrun = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2 -m nmt"
    command = f"{torchrun} translate -m {model} -i {tmp_path / 'in'} -b 1 --max-length 2 --quiet | head -n 1 | wc -l"
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, b"1"), done.stderr


def test_limits_that_contradict_each_other_are_refused(run: Nmt, model: Path) -> None:
    found = run("translate", "-m", model, "--min-length", 9, "--max-length", 4, stdin=STDIN)
    refused(found, 2, "min_length = 9 is more than max_length = 4")


def test_a_missing_package_is_named(run: Nmt, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nmt.decoding.translator", None)
    refused(run("translate", "-m", model, stdin=STDIN), 2, "package nmt is missing")


def test_fields_of_an_earlier_translation_do_not_stay(run: Nmt, model: Path) -> None:
    stdin = jsonl({"text": LINES[0], "n_best": [{"translation": "old"}], "error": "old", "id": 7})
    (record,) = objects(run("translate", "-m", model, "--format", "jsonl", stdin=stdin)[1])
    assert list(record) == ["text", "id", *RESULT]


@pytest.mark.parametrize("stderr", ["/dev/full", pytest.param(">(exec true)", marks=pytest.mark.slow)])
def test_a_broken_stderr_ends_no_work(stderr: str, model: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(jsonl({"text": "the dog"}) + b"no JSON\n" + jsonl({"text": "a cat"}))
    command = [*test_cli.NMT, "translate", "-m", model, "--format", "jsonl", "-i", tmp_path / "in"]
    script = f"{' '.join(map(str, command))} -o {tmp_path / 'out'} 2> {stderr}"
    done = subprocess.run(["bash", "-c", script], timeout=100)
    assert done.returncode == 3
    assert len((tmp_path / "out").read_bytes().splitlines()) == 3


def test_output_goes_where_a_link_points(run: Nmt, model: Path, tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("before")
    file.chmod(0o640)
    link.symlink_to(file)
    assert run("translate", "-m", model, "-o", link, stdin=STDIN)[0] == 0
    assert link.is_symlink() and file.read_text().count("\n") == len(LINES)
    assert file.stat().st_mode & 0o777 == 0o640
    refused(run("translate", "-m", model, "-o", ".", stdin=STDIN), 4, "Cannot write .: Is a directory")
    (tmp_path / "itself").symlink_to(tmp_path / "itself")
    assert run("translate", "-m", model, "-o", tmp_path / "itself", stdin=STDIN)[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_a_signal_leaves_nothing_of_an_output(number: int, model: Path, tmp_path: Path) -> None:
    with started("translate", "-m", model, "-o", tmp_path / "out", "--quiet") as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(b"the dog\n")
        process.stdin.flush()
        while not list(tmp_path.iterdir()):
            time.sleep(0.02)
        process.send_signal(number)
        assert (process.wait(60), process.stderr.read(), list(tmp_path.iterdir())) == (128 + number, b"", [])


def test_a_pause_is_not_the_end_of_a_stdin_that_does_not_block(model: Path) -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with started("translate", "-m", model, stdin=reader) as process, os.fdopen(writer, "wb", buffering=0) as pipe:
        assert process.stdout is not None
        pipe.write(b"the dog\na c")
        assert process.stdout.readline()
        pipe.write(b"at\n")
        assert process.stdout.readline()
    assert process.returncode == 0


def test_a_model_without_numbers_is_told(run: Nmt, tmp_path: Path) -> None:
    bundle = tiny.random_bundle()
    with torch.no_grad():
        for parameter in (bundle.model.decoder_norm.weight, bundle.model.output.weight):
            parameter.mul_(1e20)
    broken = tiny.save(bundle, tmp_path / "bundle")
    said = f"no probabilities for {len(LINES)} line(s)"
    for options in ((), ("-b", 1)):
        code, out, err = run("translate", "-m", broken, *options, stdin=STDIN)
        assert code == 5 and said in err and out.count("\n") == len(LINES)
    assert run("score", "-m", broken, stdin=b"the dog\tder hund\n")[0] == 5


def test_a_prefix_ends_where_a_character_has_no_piece(run: Nmt, model: Path) -> None:
    stdin = jsonl({"text": LINES[0], "prefix": "der hund \u0416 ein"})
    (record,) = objects(run("translate", "-m", model, "--format", "jsonl", stdin=stdin)[1])
    assert record["translation"].startswith("der hund") and "\u2047" not in record["translation"]


def test_a_world_without_torchrun_is_refused(run: Nmt, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for world in ("2", "many"):
        monkeypatch.setenv("WORLD_SIZE", world)
        refused(run("translate", "-m", model, stdin=STDIN), 2, f"WORLD_SIZE is {world}")


# Several sentences on a line, and translations that are too short


def test_split_sentences(run: Nmt, model: Path) -> None:
    sentences = ["The dog sees.", "A cat hears the tree!"]
    alone = run("translate", "-m", model, stdin="\n".join(sentences).encode())[1].splitlines()
    joined = " ".join(sentences).encode()
    assert run("translate", "-m", model, "--split-sentences", "always", stdin=joined)[1] == " ".join(alone) + "\n"
    assert run("translate", "-m", model, stdin=joined)[1] != " ".join(alone) + "\n"  # of this model nothing is known
    options = ("--format", "jsonl", "--split-sentences", "always", "-b", 3, "--n-best", 3)
    code, out, _ = run("translate", "-m", model, *options, stdin=jsonl({"text": " ".join(sentences)}))
    (found,) = objects(out)
    assert code == 0 and len(found["n_best"]) == 3
    assert [each["score"] for each in found["n_best"]] == sorted((e["score"] for e in found["n_best"]), reverse=True)
    for each in found["n_best"]:
        assert each["tokens"].count("</s>") == 2 and len(each["tokens"]) == len(each["token_log_probs"])
        assert math.isclose(each["log_prob"], sum(each["token_log_probs"]))
    refused(run("translate", "-m", model, "--split-sentences", "often", stdin=b""), 2, "split_sentences", "always")
    options = ("--format", "jsonl", "--split-sentences", "always", "--sample", "--n-best", 2)
    code, out, _ = run("translate", "-m", model, *options, stdin=jsonl({"text": " ".join(sentences)}))
    assert code == 0 and len(objects(out)[0]["n_best"]) == 2


def test_short_translations_are_told(run: Nmt, model: Path) -> None:
    long = " ".join(["the dog sees a cat"] * 6)
    stdin = f"a cat\n\n{long}\na dog\n{long}\n".encode()
    code, out, err = run("translate", "-m", model, "--max-length", 3, stdin=stdin)
    assert code == 0 and out.count("\n") == 5
    assert "warning: stdin: the translations of 2 line(s) (3, 5) have fewer than 0.4 pieces a piece of source" in err
    assert run("translate", "-m", model, "--max-length", 3, "-q", stdin=stdin) == (0, out, "")
    code, _, err = run("translate", "-m", model, "--min-length-ratio", 0.5, stdin=stdin)  # the control
    assert (code, err) == (0, "")
