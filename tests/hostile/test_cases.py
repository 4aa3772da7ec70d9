"""What users of other toolkits complain of when they hand over text: a test for each row of our list, by its number."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import tiny
from hostile import streams
from nmt.text.lines import clean, is_blank

Nmt = Callable[..., tuple[int, str, str]]
run, model, bytes_tokenizer, one_thread = streams.run, streams.model, streams.bytes_tokenizer, streams.one_thread
SHOWS_NOTHING = ["", " ", "  ", "\t", "\xa0", "\u3000", "\u200b", "\ufeff", "\x00", "\u2028"]
BREAKS = ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\r", "\x1c", "\x1d", "\x1e", "\x1f"]


def test_row_01_blank_lines_crash_nothing(run: Nmt, model: Path) -> None:
    code, out, err = run("translate", "-m", model, stdin=b"the dog\n\na cat\n")
    assert (code, err) == (0, "") and [bool(line) for line in out.split("\n")] == [True, False, True, False]
    assert run("translate", "-m", model, stdin=b"\n\n\n") == (0, "\n\n\n", "")
    assert run("translate", "-m", model, stdin=b"") == (0, "", "")
    assert run("score", "-m", model, stdin=b"\n\n") == (0, "\n\n", "")


def test_row_02_no_line_is_dropped(run: Nmt, model: Path) -> None:
    assert all(is_blank(clean(blank)) for blank in SHOWS_NOTHING)
    stdin = "".join(f"the dog\n{blank}\n" for blank in SHOWS_NOTHING) + "a cat\n\u200b"
    code, out, err = run("translate", "-m", model, stdin=stdin.encode())
    lines = out.split("\n")
    assert (code, err, len(lines)) == (0, "", 2 * len(SHOWS_NOTHING) + 3)
    assert [bool(line) for line in lines] == [True, False] * (len(SHOWS_NOTHING) + 1) + [False]


def test_row_04_all_of_a_long_input_is_translated(run: Nmt, model: Path) -> None:
    """Of more than two windows; each line has its own translation."""
    few = tiny.sentences(30)[0]
    options = ("translate", "-m", model, "--max-length", 2, "--precision", "fp32")
    own = run(*options, stdin="\n".join(few).encode())[1].splitlines()
    assert len(set(own)) > 5
    count = 2 * 2048 + 99
    code, out, _ = run(*options, stdin="".join(f"{few[k % 30]}\n" for k in range(count)).encode())
    assert code == 0 and out.splitlines() == [own[k % 30] for k in range(count)]


def test_row_05_odd_breaks_end_no_line(run: Nmt, model: Path, tmp_path: Path) -> None:
    """In translate, score and eval; for training see D3 in tests/data/test_sources.py."""
    odd, plain = tmp_path / "odd", tmp_path / "plain"
    text = "".join(f"the{odd}dog {odd}\n" for odd in BREAKS)
    odd.write_bytes(text.encode())
    plain.write_bytes(b"the dog  \n" * len(BREAKS))
    assert len(text.splitlines()) > 2 * len(BREAKS)  # the control: to others these are more
    translated = run("translate", "-m", model, "-i", plain)
    assert run("translate", "-m", model, "-i", odd) == translated and translated[1].count("\n") == len(BREAKS)
    scored = run("score", "-m", model, "--src", odd, "--tgt", odd)
    assert scored == run("score", "-m", model, "--src", plain, "--tgt", plain)
    code, out, _ = run("eval", "--hyp", odd, "--ref", plain, "--metric", "chrf", "--json")
    assert code == 0 and json.loads(out)["chrF2"]["score"] > 50


def test_row_05_unequal_counts_name_both(run: Nmt, tmp_path: Path) -> None:
    corpus = tiny.write(tmp_path)
    corpus.tgt.write_text("".join(corpus.tgt.read_text().splitlines(keepends=True)[:-1]))
    code, _, err = run("data", "prepare", corpus.toml, "--out", tmp_path / "cache")
    assert code == 3 and "train.en has 200 lines but" in err and "train.de has 199" in err


def test_row_06_ends_of_lines_change_no_score(run: Nmt, model: Path, tmp_path: Path) -> None:
    """CRLF, no last newline, a byte-order mark, gzip: the same scores, and no carriage return in what comes out."""
    lines = [b"the dog sees a red cat today", b"a man hears the bird here", b"the child likes the old tree"]
    plain = b"".join(line + b"\n" for line in lines)
    (tmp_path / "ref").write_bytes(plain.replace(b"old", b"big"))
    scores, translations, probabilities = set(), set(), set()
    for form in (
        plain,
        b"\r\n".join(lines) + b"\r\n",
        b"\n".join(lines),
        b"\xef\xbb\xbf" + plain,
        gzip.compress(plain),
    ):
        (tmp_path / "text").write_bytes(form)
        scores.add(run("eval", "--hyp", tmp_path / "text", "--ref", tmp_path / "ref", "--metric", "bleu", "--json"))
        translations.add(run("translate", "-m", model, "-i", tmp_path / "text"))
        probabilities.add(run("score", "-m", model, "--src", tmp_path / "text", "--tgt", tmp_path / "ref"))
    assert len(scores) == len(translations) == len(probabilities) == 1
    ((code, out, err),) = translations
    assert (code, err) == (0, "") and out.count("\n") == 3 and "\r" not in out


def test_row_07_bytes_that_are_no_utf8_are_told_by_line(run: Nmt, model: Path, tmp_path: Path) -> None:
    """For locales see S3 in test_s_streams.py."""
    stdin = b"the dog\nthe \xff\xfe cat\n" + "Grün\n".encode()
    code, out, err = run("translate", "-m", model, stdin=stdin)
    assert code == 0 and out.count("\n") == 3
    assert err == "warning: stdin: 1 line(s) (2) held invalid UTF-8, replaced by U+FFFD.\n"
    assert run("translate", "-m", model, "-q", stdin=stdin) == (0, out, "")
    code, strict, err = run("translate", "-m", model, "--strict", "-q", stdin=stdin)
    assert (code, strict) == (3, out) and "1 line(s) (2) held invalid UTF-8" in err and "--strict" in err
    assert run("translate", "-m", model, "--strict", stdin=b"the dog\n")[0] == 0
    (tmp_path / "hyp").write_bytes(stdin)
    code, _, err = run("eval", "--hyp", tmp_path / "hyp", "--ref", tmp_path / "hyp", "--metric", "chrf")
    assert code == 0 and err.count("1 line(s) (2) held invalid UTF-8") == 2


def test_row_08_a_byte_order_mark_is_no_text(run: Nmt, model: Path) -> None:
    plain = run("translate", "-m", model, stdin=b"the dog\n")
    assert run("translate", "-m", model, stdin=b"\xef\xbb\xbfthe dog\n") == plain
    assert run("tokenizer", "encode", "-m", model, stdin=b"\xef\xbb\xbfthe dog\n") == run(
        "tokenizer", "encode", "-m", model, stdin=b"the dog\n"
    )


def test_row_10_marks_in_the_text_are_text(run: Nmt, model: Path) -> None:
    text = "a </s> b <pad> <unk> <s> <2de> <0x0A>"
    code, ids, _ = run("tokenizer", "encode", "-m", model, "--ids", stdin=f"{text}\n".encode())
    numbers = [int(number) for number in ids.split()]
    assert code == 0 and min(numbers) > 3
    back = run("tokenizer", "decode", "-m", model, "--ids", stdin=ids.encode())[1]
    assert back == f"{text}\n"
    code, out, _ = run("translate", "-m", model, stdin=f"{text}\n".encode() * 2)
    assert code == 0 and out.count("\n") == 2
