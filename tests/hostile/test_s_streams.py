"""S1 to S5: whatever comes in on a stream, line k out answers line k, and nothing else happens."""

import json
import os
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hostile import stream_child, streams
from hostile.streams import HEAVY, hostile_lines
from nmt.bundle import Bundle
from nmt.decoding.search import Hypothesis
from nmt.decoding.translator import Translator
from nmt.text.lines import MAX_LINE_BYTES
from nmt.text.tokenizer import Tokenizer

Nmt = Callable[..., tuple[int, str, str]]
Figure = Callable[..., None]
ROOT = Path(__file__).resolve().parents[2]
run, model, bytes_tokenizer, one_thread = streams.run, streams.model, streams.bytes_tokenizer, streams.one_thread


def faults(text: bytes, lines: int) -> list[str]:
    """What is wrong with an output that should have so many lines."""
    ended = text.count(b"\n")
    found = [] if ended == lines and text.endswith(b"\n") else [f"{ended} lines of {lines}"]
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as error:
        return [*found, str(error)]
    return found + sorted({ascii(c) for c in decoded if c != "\n" and unicodedata.category(c) in ("Cc", "Zl", "Zp")})


def test_faults_are_seen() -> None:
    """The negative controls."""
    assert faults(b"a\nb\n", 2) == []
    assert faults(b"a\nb", 2) and faults(b"a\n", 2) and faults(b"\xff\n", 1) and faults(b"\x1b\n", 1)
    assert faults("\u2028\n".encode(), 1) and faults("\x85\n".encode(), 1)


def test_s1_any_bytes(run: Nmt, model: Path, tmp_path: Path, full: bool, figure: Figure) -> None:
    count = 20_000 if full else 1_000
    lines = hostile_lines(count)
    data = b"".join(line + b"\n" for line in lines)
    assert sum(map(len, map(bytes.splitlines, lines))) > count  # others would cut these lines
    (tmp_path / "in").write_bytes(data)
    wrong: list[str] = []

    def check(*arguments: object, stdin: bytes = b"", out: Path | None = None) -> bytes:
        code, printed, err = run(*arguments, stdin=stdin)
        name = " ".join(map(str, arguments[:2]))
        text = printed.replace("\t", " ").encode() if out is None else out.read_bytes()  # TAB is between two scores
        wrong.extend(f"{name}: {fault}" for fault in faults(text, stdin.count(b"\n") or count))
        clean = all(c == "\n" or not unicodedata.category(c).startswith("C") for c in err)
        if code or "Traceback" in err or not clean or len(err) > 2000:
            wrong.append(f"{name}: exit {code}, {err[:300]!r}")
        return text

    translate = ("translate", "-m", model, "--precision", "fp32")
    text = check(*translate, "-i", tmp_path / "in", "-o", tmp_path / "out", out=tmp_path / "out")
    assert len(set(text.split(b"\n"))) > 100  # it did translate
    for heavy in HEAVY if full else ():
        check(*translate, stdin=heavy + b"\n")
    pairs = b"".join(line.replace(b"\t", b" ") + b"\tder hund \xff\n" for line in lines[:: 1 if full else 4])
    check("score", "-m", model, "--precision", "fp32", stdin=pairs)
    pieces = check("tokenizer", "encode", "-m", model, stdin=data)
    check("tokenizer", "decode", "-m", model, "--side", "src", stdin=pieces)
    code, _, err = run("eval", "--hyp", tmp_path / "in", "--ref", tmp_path / "in", "--metric", "chrf", "--json")
    if code or f"of {count:,}" in err:
        wrong.append(f"eval: exit {code}: {err[:300]}")
    figure(
        "s1_hostile_lines",
        f"{len(wrong)} faults in {count:,} lines, 5 commands {wrong[:5] or ''}".strip(),
        "0",
        not wrong,
    )


def test_s4_every_byte_piece(bytes_tokenizer: Tokenizer, model: Path, figure: Figure) -> None:
    """A model forced to emit each byte: alone, again, before, after and inside words, and after half a character."""
    translator = Translator(Bundle.load(model))
    pieces = {bytes_tokenizer.tgt_pieces([i])[0]: i for i in range(bytes_tokenizer.tgt_vocab_size)}
    byte = [pieces[f"<0x{number:02X}>"] for number in range(256)]
    word = bytes_tokenizer.encode_tgt(["hund"])[0][:-1]
    broken = set()
    for number, b in enumerate(byte):
        halves = [[byte[0xC2], b], [byte[0xE2], byte[0x80], b], [byte[0xED], byte[0xA0], b], [byte[0xF4], b, b, b]]
        for ids in ([b], [b] * 3, [*word, b], [b, *word], [*word, b, *word], *halves):
            text = translator.text(Hypothesis(score=0.0, ids=tuple(ids), log_prob=0.0, token_log_probs=()))
            if faults(f"{text}\n".encode(), 1) or len(text.splitlines()) > 1:
                broken.add(number)
    raw = bytes_tokenizer.decode([byte[10]]) + bytes_tokenizer.decode([byte[27]])
    assert raw == "\n\x1b"  # the negative control: without cleaning these come through
    figure("s4_byte_pieces", f"{256 - len(broken)} of 256 give one clean line", "256", not broken)


POISON = [
    b"x" * (MAX_LINE_BYTES + 9), b"nan", b"inf -inf NaN", b"\xff\xfe\xfd", b"\x00", b"\x1b]0;x\x07", "\u2028".encode(),
    b"\xed\xa0\x80", "\u0301".encode() * 50, "\ufdfa".encode() * 5, b"</s> <s> <pad>", b"", b"{", b"\r",
]  # fmt: skip
POISON_JSON = [b"{", b"[]", b'{"text": 7}', b'{"text": NaN}', b'{"text": "a", "x": 1e999}', b"[" * 9999, b"\xff", b"",
               b'{"text": "\\ud800"}', b'{"text": "' + b"x" * (MAX_LINE_BYTES + 9) + b'"}']  # fmt: skip


@pytest.mark.parametrize("format", ["text", "jsonl"])
def test_s5_a_poisoned_line_leaves_its_neighbours_alone(run: Nmt, model: Path, format: str, figure: Figure) -> None:
    poison: list[bytes] = POISON if format == "text" else POISON_JSON
    clean = [f"the dog sees {word} {k}".encode() for k, word in enumerate(["red", "old", "a"] * len(poison))]
    if format == "jsonl":
        clean = [json.dumps({"text": line.decode()}).encode() for line in clean]
    poisoned = [line for pair in zip(clean, poison * 3, strict=False) for line in pair]
    options = ("translate", "-m", model, "--precision", "fp32", "--format", format)
    expected = run(*options, stdin=b"\n".join(clean[: len(poisoned) // 2]))[1].split("\n")
    code, out, _ = run(*options, stdin=b"\n".join(poisoned))
    got = out.split("\n")
    assert code == (3 if format == "jsonl" else 0) and len(got) == len(poisoned) + 1 and len(set(expected)) > 5
    changed = sum(a != b for a, b in zip(expected[:-1], got[0:-1:2], strict=True))
    figure(f"s5_poisoned_{format}", f"{changed} of {len(expected) - 1} neighbours changed", "0", not changed)


LOCALES = {
    "all": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"},
    "C, as UTF-8 by PEP 540": {"LANG": "C", "LC_ALL": ""},
    "C.UTF-8": {"LC_ALL": "C.UTF-8"},
    "ascii": {"PYTHONIOENCODING": "ascii", "LC_ALL": "C.UTF-8"},
    "mode off": {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"},
}
MENDED = "2 line(s) (4, 5) held invalid UTF-8"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full, no /proc: not Linux")
def test_s2_s3_streams_in_odd_states(run: Nmt, model: Path, tmp_path: Path, full: bool, figure: Figure) -> None:
    """S3: what is documented, and the same bytes, under every locale. S2: memory does not grow with the input."""
    translate = ("translate", "-m", model, "--precision", "fp32")
    out = run(*translate, stdin=stream_child.TEXT)[1].encode().hex()
    assert bytes.fromhex(out).count(b"\n") == 6
    typed = [run(*translate, stdin=line)[1] for line in (b"the dog\n", b"\n", "Grün\n".encode())]
    expected: dict[str, tuple[int, str | None, str]] = {
        "empty stdin": (0, "", ""),
        "no final newline": (0, out, MENDED),
        "a final newline": (0, out, MENDED),
        "closed stdin": (0, "", ""),
        "closed stdout": (0, "", MENDED),
        "full": (4, None, "No space left on device"),
        "a file": (0, out, MENDED),
        "head -1": (0, run(*translate, "--max-length", 2, stdin=b"the dog\n")[1].encode().hex(), ""),
        "terminal": (0, "".join(f"{answer}|" for answer in typed).encode().hex(), ""),
    }
    right, wrong = 0, []
    sizes = (100 * 2**20, 1_000_000) if full else (5 * 2**20, 20_000)
    memory: dict[str, list[Any]] = {}
    for name in LOCALES if full else ("all",):
        (tmp_path / name).mkdir()
        command = [sys.executable, "-m", "hostile.stream_child", model, tmp_path / name, *(() if memory else sizes)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **LOCALES[name]}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, timeout=1200, check=True)
        found = json.loads(done.stdout)
        memory = memory or found["memory"]
        assert (found["encoding"] == "utf-8") == ("UTF-8" in name)  # the negative control: text mode would fail
        for case, (code, text, said) in expected.items():
            got = found["cases"][case]
            if got[:2] == [code, text] and (said in got[2] if said else not got[2]) and "Traceback" not in got[2]:
                right += 1
            else:
                wrong.append(f"{name}, {case}: {got}")
    number = len(LOCALES) if full else 1
    figure("s3_streams", f"{right} of {9 * number} {wrong or ''}".strip(), "all", not wrong)
    grown = {name: round(mb) for name, (mb, _, _) in memory.items()}
    lines = [memory["long"][1:], memory["blank"][1:], memory["slow reader"][2]]
    ok = max(grown.values()) < 64 and lines == [[1, 0], [sizes[1], 0], 0]
    figure("s2_private_memory_mb", f"{grown} above a light input's; lines, codes {lines}", "< 64, all lines", ok)
