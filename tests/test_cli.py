"""The command line: exit codes, streams, signals and the frozen list of options.

Mostly in this process: it is quicker.
"""

import gzip
import io
import json
import lzma
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer

import nmt
import tiny
from nmt.alignment import plot
from nmt.bundle import list_checkpoints
from nmt.cli import _run, main
from nmt.cli.app import app
from nmt.pictures import NO_FONT
from nmt.training import progress, trainer
from nmt.training.trainer import Trainer
from tiny import Tiny

Nmt = Callable[..., tuple[int, str, str]]
NMT = [sys.executable, "-m", "nmt"]

OPTIONS = {
    "": "--version --debug",
    "train": "CONFIG --src --tgt --out --data --cache --set --seed --dry-run --allow-changed --offline --device "
    "--threads --quiet -q",
    "translate": "-m --model -i --input -o --output --prefix --format --protect --alignments --line-buffered -b "
    "--beam-size --n-best --length-penalty --length-penalty-type --coverage-penalty --max-length-ratio "
    "--max-length-extra --max-length --min-length --min-length-ratio --no-repeat-ngram --repetition-penalty "
    "--sample --temperature --top-k --top-p --seed --tag --split-sentences --align-layer "
    "--align-head --align-shift --align-threshold --precision --deterministic --num-workers "
    "--batch-rows --device --threads --strict --quiet -q",
    "score": "-m --model --src --tgt -o --output --format --length-penalty --length-penalty-type --repetition-penalty "
    "--tag --precision --deterministic --num-workers --batch-rows --device --threads --strict --quiet -q",
    "eval": "-m --model --src --ref --hyp -t --test-set -l --langpair --metric --tokenize --lowercase --tgt-lang "
    "--align --tgt --reverse-model --choose --by-head --save-hyp --json -b --beam-size --length-penalty --tag "
    "--split-sentences --align-layer --align-head --align-shift --align-threshold --precision --deterministic "
    "--num-workers --offline --device --threads --quiet -q",
    "attn-plot": "-m --model --src -o --output --tgt --attention --layer --head --grid --pieces --gold --json --device "
    "--quiet -q",
    "tokenizer train": "FILES -o --output --vocab-size --type --lines --character-coverage --byte-fallback "
    "--normalization --user-symbol --seed --quiet -q",
    "tokenizer encode": "-m --model --side --ids",
    "tokenizer decode": "-m --model --side --ids",
    "data toy": "--out --seed",
    "data prepare": "CONFIG --out --data --set --text-out --offline",
    "data check": "CONFIG --src --tgt --valid-src --valid-tgt --test-src --test-tgt --data --set --tokenizer --langid "
    "--json --html --write-bad --threads --quiet -q",
    "model info": "-m --model --json --plot --beside",
    "model check": "CONFIG -m --model --src --tgt --set --length --batch --json --threads --quiet -q",
    "model import": "FOLDER --format --out --src-lang --tgt-lang --quiet -q",
    "model export": "MODEL --format --out --check --quiet -q",
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(progress, "_tensorboard", lambda *_: None)
    with tiny.one_thread():
        yield


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return tiny.write(tmp_path_factory.mktemp("tiny"), training={"max_updates": 2})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(tiny.random_bundle(num_decoder_layers=2), tmp_path_factory.mktemp("model") / "bundle")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Nmt:
    """`run(*arguments, stdin=b"")`: exit code, stdout, stderr."""

    def call(*arguments: object, stdin: bytes = b"", debug: bool = False) -> tuple[int, str, str]:
        capsys.readouterr()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = _run([str(argument) for argument in arguments], debug)
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def refused(result: tuple[int, str, str], code: int, *said: str) -> None:
    """One clear paragraph, the code of its kind, nothing on stdout."""
    assert result[0] == code, result
    assert result[1] == ""
    assert "Traceback" not in result[2]
    assert result[2].startswith("Usage: ") or (result[2].startswith("nmt: ") and "\n\n" not in result[2])
    for part in said:
        assert part in result[2]


# What is there


def test_the_options_are_frozen() -> None:
    found: dict[str, str] = {}

    def walk(command: object, name: str) -> None:
        names: list[str] = []
        for parameter in command.params:  # type: ignore[attr-defined]
            argument = parameter.param_type_name == "argument"
            names += [parameter.name.upper()] if argument else [o for o in parameter.opts if o != "--help"]
        children = getattr(command, "commands", {})
        if names or not children:
            found[name] = " ".join(names)
        for child, inner in children.items():
            walk(inner, f"{name} {child}".strip())

    walk(typer.main.get_command(app), "")
    assert {name: sorted(options.split()) for name, options in found.items()} == {
        name: sorted(options.split()) for name, options in OPTIONS.items()
    }


@pytest.mark.parametrize("command", OPTIONS)
def test_help(run: Nmt, command: str) -> None:
    code, out, err = run(*command.split(), "--help")
    assert code == 0 and err == ""
    for option in OPTIONS[command].split():
        assert option in out or option.isupper() or len(option) == 2


def test_version(run: Nmt) -> None:
    assert run("--version") == (0, f"nmt {nmt.__version__}\n", "")
    changes = (Path(__file__).parents[1] / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (\S+)", changes, re.MULTILINE)[0] == nmt.__version__


# Usage and config: 2


def test_usage_mistakes(run: Nmt, corpus: Tiny, model: Path, tmp_path: Path) -> None:
    refused(run("translate", "--beam", "3", "-m", model), 2, "--beam")
    refused(run("translate"), 2, "--model")
    refused(run("fly"), 2, "fly")
    refused(run("translate", "-m", model, "--beam-size", "0"), 2, "--beam-size")
    refused(run("train"), 2, "Give either a CONFIG, or --src FILE with --tgt FILE.")
    refused(run("train", corpus.toml, "--src", corpus.src, "--tgt", corpus.tgt), 2, "Give either a CONFIG")
    refused(run("train", "--src", corpus.src), 2, "Give either a CONFIG")
    refused(run("train", tmp_path / "no.toml"), 2, f"There is no config {tmp_path / 'no.toml'}")
    refused(run("train", corpus.toml, "--set", "model.d_modell=3", "--out", tmp_path / "r"), 2, "did you mean d_model?")
    refused(run("train", corpus.toml, "--set", "seed", "--out", tmp_path / "r"), 2, "section.key=value")
    refused(run("train", corpus.toml, "--out", tmp_path / "r", "--device", "tpu"), 2, "--device tpu")
    refused(run("translate", "-m", model, "--device", "tpu", stdin=b"a\n"), 2, "--device tpu")
    refused(run("tokenizer", "encode", "-m", model, "--side", "both"), 2, "--side both")
    assert not (tmp_path / "r" / "checkpoints").exists()


# Data: 3, model: 5


def test_data_mistakes(run: Nmt, corpus: Tiny, model: Path, tmp_path: Path) -> None:
    (tmp_path / "train.en").write_text("a b\n" * 30)
    (tmp_path / "train.de").write_text("a b\n" * 29)
    out = ("--out", tmp_path / "run")
    result = run("train", corpus.toml, "--data", tmp_path, *out, "--quiet")
    refused(result, 3, "30 lines", "has 29")
    refused(run("train", corpus.toml, "--data", tmp_path / "nowhere", *out, "--quiet"), 3, "Cannot read", "nowhere")
    refused(run("translate", "-m", model, "-i", tmp_path / "no.txt"), 3, "Cannot read", "no.txt")
    refused(run("tokenizer", "train", tmp_path / "no.txt", "-o", tmp_path / "t.model"), 3, "no.txt")
    (tmp_path / "blank").write_text(" \n\n")
    refused(run("tokenizer", "train", tmp_path / "blank", "-o", tmp_path / "t.model"), 3, "no text")
    refused(run("tokenizer", "decode", "-m", model, "--ids", stdin=b"five\n"), 3, "line 1", "piece numbers")


def test_model_mistakes(run: Nmt, tmp_path: Path) -> None:
    refused(run("translate", "-m", tmp_path / "nowhere", stdin=b"a\n"), 5, "is no model", "does not exist")
    refused(run("translate", "-m", tmp_path, stdin=b"a\n"), 5, "no config.json")
    refused(run("model", "info", "-m", tmp_path), 5, "is no model")
    broken = tiny.save(tiny.random_bundle(), tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"")
    refused(run("translate", "-m", broken, stdin=b"a\n"), 5, "is damaged", "0 bytes")


def test_a_fault_of_ours_is_1(run: Nmt, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(_: object) -> object:
        raise RuntimeError("broken")

    monkeypatch.setattr("nmt.bundle.Bundle.load", fault)
    code, _, err = run("model", "info", "-m", model)
    assert code == 1 and "Unexpected RuntimeError: broken" in err and "Traceback" not in err
    assert "Traceback" in run("model", "info", "-m", model, debug=True)[2]


def test_divergence_is_6(run: Nmt, corpus: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "batch_loss", lambda model, *_: model.output.weight.sum() * float("nan"))
    refused(run("train", corpus.toml, "--out", tmp_path / "a", "-q", "--device", "cpu"), 6, "not finite")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_saves(
    run: Nmt, corpus: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    original = Trainer.one_update

    def interrupted(self: Trainer) -> dict[str, float]:
        rates = original(self)
        os.kill(os.getpid(), number)
        return rates

    monkeypatch.setattr(progress, "_tensorboard", lambda *_: None)
    monkeypatch.setattr(Trainer, "one_update", interrupted)
    refused(run("train", corpus.toml, "--out", tmp_path / "b", "-q", "--device", "cpu"), code, "after update 1")
    assert list_checkpoints(tmp_path / "b")


# Streams


def test_translate(run: Nmt, model: Path, tmp_path: Path) -> None:
    code, out, err = run("translate", "-m", model, stdin=b"the dog\n\na cat")
    assert (code, err) == (0, "")
    lines = out.split("\n")
    assert len(lines) == 4 and lines[0] and lines[1] == "" and lines[2] and lines[3] == ""
    assert run("translate", "-m", model, stdin=b"") == (0, "", "")
    assert run("translate", "-m", model, stdin=b"\n\n") == (0, "\n\n", "")
    (tmp_path / "in").write_bytes(b"\xef\xbb\xbfthe dog\r\n\r\na cat\r\n")
    assert run("translate", "-m", model, "-i", tmp_path / "in") == (0, out, "")
    assert run("translate", "-m", model, "--beam-size", "1", "--length-penalty", "0", stdin=b"a\n")[0] == 0
    assert run("translate", "-m", model, stdin="the\u2028dog\x0ca\x85cat\n".encode())[1].count("\n") == 1


def started(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    streams = {"stdin": pipe, "stdout": pipe, "stderr": pipe, "env": environment, **options}
    return subprocess.Popen([*NMT, *map(str, arguments)], **streams)  # type: ignore[call-overload, no-any-return]


def test_a_waiting_pipe_is_answered(model: Path) -> None:
    """Under LC_ALL=C too."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    with started("translate", "-m", model, env=environment) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        watch = threading.Timer(120, process.kill)
        watch.start()
        for line in ("the dog", "", "Grün \xa0 the"):
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
            answer = process.stdout.readline()  # no end of file needed
            assert answer.endswith(b"\n") and (answer == b"\n") == (line == "")
            answer.decode("utf-8")
        process.stdin.close()
        assert process.stdout.read() == b"" and process.stderr.read() == b""
        watch.cancel()
    assert process.returncode == 0


def test_a_full_disk_is_4(model: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with Path("/dev/full").open("wb") as full, started("translate", "-m", model, stdout=full) as process:
        _, err = process.communicate(b"the dog\n")
    assert process.returncode == 4
    assert err.decode() == "nmt: Reading or writing failed: No space left on device.\n"


def test_a_closed_pipe_is_0(model: Path) -> None:
    with started("translate", "-m", model) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdout.close()
        process.stdin.write(b"the dog\n" * 50)
        process.stdin.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (0, b"")


@pytest.mark.parametrize("leaves", ["reader", "user"])
def test_nothing_is_said_when_stdin_stays_open(leaves: str, model: Path) -> None:
    with started("translate", "-m", model, "--quiet") as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write(b"the dog\n")
        process.stdin.flush()
        process.stdout.readline()
        if leaves == "user":
            process.send_signal(signal.SIGINT)
        else:
            process.stdout.close()
            process.stdin.write(b"the dog\n")
            process.stdin.flush()
        err = process.stderr.read()
        code = process.wait(timeout=60)
    assert (code, err) == (130 if leaves == "user" else 0, b"")


@pytest.mark.parametrize("place", [0, 1, 3])
def test_debug_shows_the_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: int
) -> None:
    """Wherever it stands."""
    arguments = ["translate", "-m", str(tmp_path / "nowhere")]
    arguments.insert(place, "--debug")
    monkeypatch.setattr(sys, "argv", ["nmt", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    err = capsys.readouterr().err
    assert caught.value.code == 5
    assert "Traceback" in err and err.splitlines()[-1].startswith("nmt: ")


def test_sigterm_saves_and_the_run_goes_on(run: Nmt, corpus: Tiny, tmp_path: Path) -> None:
    endless = ("--set", "validation.every=100000", "--out", tmp_path, "--device", "cpu", "--quiet")
    with started("train", corpus.toml, "--set", "training.max_updates=1000000", *endless) as process:
        log = tmp_path / "log.jsonl"
        until = time.monotonic() + 200
        while process.poll() is None and time.monotonic() < until and not (log.is_file() and log.stat().st_size):
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate()
    assert process.returncode == 143, err
    assert out == b"" and b"Stopped by a signal after update" in err and b"Traceback" not in err
    (checkpoint,) = list_checkpoints(tmp_path)
    reached = int(checkpoint.name[5:])
    limit = f"training.max_updates={reached + 2}"
    code, printed, _ = run("train", corpus.toml, "--set", limit, *endless)
    assert (code, printed) == (0, f"{tmp_path / 'bundle'}\n")
    updates = [json.loads(line)["update"] for line in log.read_text().splitlines() if '"update", ' in line]
    assert updates == list(range(1, reached + 3))


# train


def test_train_prints_the_bundle_alone(run: Nmt, corpus: Tiny, tmp_path: Path) -> None:
    code, out, err = run("train", corpus.toml, "--out", tmp_path / "run", "--cache", corpus.cache, "--device", "cpu")
    assert (code, out) == (0, f"{tmp_path / 'run' / 'bundle'}\n")
    assert "model:" in err and "update" in err and "stopping: max_updates = 2" in err
    code, out, err = run(
        "train", corpus.toml, "--out", tmp_path / "run", "--cache", corpus.cache, "-q", "--seed", "1", "--device", "cpu"
    )
    assert (code, out, err) == (0, f"{tmp_path / 'run' / 'bundle'}\n", "")
    refused(run("train", corpus.toml, "--out", tmp_path / "run", "--seed", "2"), 2, "training.seed = 2 (the run has 1)")


def test_train_without_a_config(run: Nmt, corpus: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = [
        *("--set", "training.max_updates=1", "--set", "model.d_model=16", "--set", "model.num_encoder_layers=1"),
        *("--set", "model.num_decoder_layers=1", "--set", "validation.max_sentences=2", "--device", "cpu"),
    ]
    (tmp_path / "train.en.gz").write_bytes(gzip.compress(corpus.src.read_bytes()))  # compressed text will do
    (tmp_path / "train.de.xz").write_bytes(lzma.compress(corpus.tgt.read_bytes()))
    code, out, err = run("train", "--src", "train.en.gz", "--tgt", "train.de.xz", *small)
    assert (code, out) == (0, "runs/train/bundle\n")
    assert 'src_lang = "en"' in err and "max_epochs = 100" in err
    assert run("translate", "-m", "runs/train", "--beam-size", "1", stdin=b"a dog\n")[0] == 0
    (tmp_path / "plain").write_text("x\n" * 50)
    refused(run("train", "--src", "plain", "--tgt", corpus.tgt), 2, "cannot be read off the name plain")


def test_dry_run(run: Nmt, corpus: Tiny, tmp_path: Path) -> None:
    code, out, _ = run("train", corpus.toml, "--dry-run", "--out", tmp_path / "run", "--device", "cpu")
    assert code == 0
    for fact in ("data:", "parameters:", "peak memory (MB):", "tokens/s:", "estimated minutes:"):
        assert f"{fact} " in out
    assert list_checkpoints(tmp_path / "run") == []


# eval


def test_eval_of_files(run: Nmt, tmp_path: Path) -> None:
    hyp, one, two = tmp_path / "hyp", tmp_path / "ref1", tmp_path / "ref2"
    hyp.write_text("the dog sees the cat today\nhello\n")
    one.write_text("the dog sees the cat today\nworld\n")
    two.write_text("a dog\nhello\n")
    code, out, err = run("eval", "--hyp", hyp, "--ref", hyp, "--json")
    scores = json.loads(out)
    assert (code, err) == (0, "") and list(scores) == ["BLEU", "chrF2", "TER"]
    assert scores["BLEU"]["score"] == pytest.approx(100) and scores["TER"]["score"] == 0
    assert "version:" in scores["BLEU"]["signature"]
    single = json.loads(run("eval", "--hyp", hyp, "--ref", one, "--json", "--metric", "chrf")[1])
    both = json.loads(run("eval", "--hyp", hyp, "--ref", one, "--ref", two, "--json", "--metric", "chrf")[1])
    assert list(single) == ["chrF2"] and single["chrF2"]["score"] < both["chrF2"]["score"] == pytest.approx(100)
    code, out, _ = run("eval", "--hyp", hyp, "--ref", one)
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == ["BLEU", "chrF2", "TER"]
    assert all("version:" in line for line in out.splitlines())


def test_eval_of_a_model(run: Nmt, corpus: Tiny, model: Path, tmp_path: Path) -> None:
    src, ref, saved = tmp_path / "src", tmp_path / "ref", tmp_path / "saved"
    src.write_text("the dog\n\na cat\n")
    ref.write_text("der hund\nleer\neine katze\n")
    code, out, _ = run("eval", "-m", model, "--src", src, "--ref", ref, "--save-hyp", saved, "--json")
    assert code == 0
    assert saved.read_text() == run("translate", "-m", model, "-i", src)[1]
    again = run("eval", "--hyp", saved, "--ref", ref, "--tgt-lang", "de", "--json")
    assert json.loads(again[1]) == json.loads(out)


def test_eval_mistakes(run: Nmt, model: Path, tmp_path: Path) -> None:
    two, three, none = tmp_path / "two", tmp_path / "three", tmp_path / "none"
    two.write_text("a\nb\n")
    three.write_text("a\nb\nc\n")
    none.write_text("")
    refused(run("eval", "--hyp", two, "--ref", three), 3, "2", "3")
    refused(run("eval", "-m", model, "--src", two, "--ref", three, "--beam-size", "1"), 3, "2", "3")
    refused(run("eval", "--hyp", none, "--ref", none), 3)
    refused(run("eval", "--hyp", tmp_path / "no", "--ref", two), 3, "Cannot read")
    refused(run("eval"), 2, "--hyp FILE")
    refused(run("eval", "--ref", two), 2, "--hyp FILE")
    refused(run("eval", "-m", model, "--ref", two), 2, "--src FILE")
    refused(run("eval", "-t", "wmt14", "--hyp", two), 2, "-l SRC-TGT")
    refused(run("eval", "--hyp", two, "--ref", two, "--metric", "blue"), 2, "blue")
    refused(run("eval", "--hyp", two, "--ref", two, "--tokenize", "moses"), 2, "moses")


def test_eval_warns_of_subwords(run: Nmt, tmp_path: Path) -> None:
    (tmp_path / "hyp").write_text("▁the ▁dog\n" * 5)
    assert "warning" in run("eval", "--hyp", tmp_path / "hyp", "--ref", tmp_path / "hyp")[2]
    assert run("eval", "--hyp", tmp_path / "hyp", "--ref", tmp_path / "hyp", "-q")[2] == ""


# tokenizer, data, model, attn-plot


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_tokenizer_round_trip(run: Nmt, corpus: Tiny, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "t.model"
    options = ("--vocab-size", "400", "--type", kind)
    (tmp_path / "packed").write_bytes(lzma.compress(corpus.tgt.read_bytes()))
    code, out, err = run("tokenizer", "train", corpus.src, tmp_path / "packed", "-o", file, *options)
    assert (code, out) == (0, "") and "pieces from 400 lines" in err
    text = b"the small dog\n\nein hund\n"
    for flags in ((), ("--ids",)):
        code, pieces, _ = run("tokenizer", "encode", "-m", file, *flags, stdin=text)
        assert code == 0 and pieces.count("\n") == 3 and ("▁" in pieces) == (not flags)
        assert run("tokenizer", "decode", "-m", file, *flags, stdin=pieces.encode()) == (0, text.decode(), "")


def test_tokenizer_options(run: Nmt, tmp_path: Path) -> None:
    file, long = tmp_path / "t.model", tmp_path / "long"
    long.write_text("ab cd ef gh\n" * 300 + "a" * 5000 + "\n")
    options = ("--user-symbol", "<2de>", "--no-byte-fallback", "--normalization", "identity", "--lines", "300")
    code, _, err = run("tokenizer", "train", long, "-o", file, "--vocab-size", "40", *options)
    assert code == 0 and "pieces from 300 of 301 lines" in err and "of 1 long lines the first 4,192 bytes" in err
    _, pieces, _ = run("tokenizer", "encode", "-m", file, stdin="x<2de> ﬁ\n".encode())
    assert "<2de>" in pieces.split() and "<0x" not in pieces
    refused(run("tokenizer", "train", long, "-o", file, "--user-symbol", "</s>"), 2, "[tokenizer] user_symbols")


def test_tokenizer_of_a_bundle(run: Nmt, model: Path) -> None:
    pieces = run("tokenizer", "encode", "-m", model, stdin=b"the dog\n")[1]
    assert run("tokenizer", "decode", "-m", model, stdin=pieces.encode())[1] == "the dog\n"


def test_data_prepare_and_its_cache(run: Nmt, corpus: Tiny, tmp_path: Path) -> None:
    code, out, err = run("data", "prepare", corpus.toml, "--out", tmp_path / "cache")
    assert code == 0 and re.search(r"^train: 200 read, \d+ kept", out) and "encoding" in err
    assert "valid: 18 read, 18 kept" in out or re.search(r"valid: \d+ read, \d+ kept", out)
    arguments = ("train", corpus.toml, "--cache", tmp_path / "cache", "--out", tmp_path / "run", "--device", "cpu")
    code, _, err = run(*arguments)
    assert code == 0 and "encoding" not in err and not (tmp_path / "run" / "cache").exists()


def test_data_toy(run: Nmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.data.toy.write_toy", lambda out, seed: {f"{out.name}-{seed}": 1234})
    assert run("data", "toy", "--out", tmp_path / "x", "--seed", "7") == (0, "x-7: 1,234 pairs\n", "")


def test_model_info(run: Nmt, model: Path, tmp_path: Path) -> None:
    code, out, _ = run("model", "info", "-m", model, "--json")
    facts = json.loads(out)
    assert code == 0 and facts["languages"] == "en -> de" and facts["folder"] == str(model)
    assert facts["model"]["d_model"] == 16 and facts["parameters"] > 1000
    code, out, _ = run("model", "info", "-m", model)
    assert code == 0 and "languages: en -> de\n" in out and "d_model 16" in out
    refused(run("model", "info", "-m", model, "--beside", model), 2, "--beside goes with --plot")
    refused(run("model", "info", "-m", tmp_path, "--plot", tmp_path / "a.png"), 3, "There is no")


def test_attn_plot(run: Nmt, model: Path, tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    src = ("attn-plot", "-m", model, "--src", "the small dog")
    code, out, err = run(*src, "-o", picture)
    assert "causal" not in err  # the picture says it
    assert code == 0 and picture.read_bytes().startswith(b"\x89PNG")
    assert out == run("translate", "-m", model, stdin=b"the small dog\n")[1]
    code, out, _ = run(*src, "-o", tmp_path / "a.svg", "--tgt", "der hund", "--layer", 2, "--head", 1, "--pieces")
    assert (code, out) == (0, "der hund\n") and (tmp_path / "a.svg").read_bytes().startswith(b"<?xml")
    refused(run(*src, "-o", tmp_path / "b.png", "--layer", 3), 2, "--layer 3: the model has 2")
    refused(run(*src, "-o", tmp_path / "b.html", "--head", 3), 2, "--head 3: the model has 2")
    refused(run(*src, "-o", tmp_path / "b.png", "--layer", 0), 2, "--layer")
    refused(run(*src, "-o", tmp_path / "b.gif"), 2, ".png, .svg or .pdf, or in .html")
    refused(run(*src, "--grid"), 2, "--grid is for a picture")
    refused(run(*src, "-m", model, "-o", tmp_path / "b.png"), 2, "one model")
    refused(run(*src, "--gold", "0-0", "--pieces"), 2, "--pieces")
    refused(run(*src, "--gold", "0-0", "--attention", "encoder"), 2, "--attention encoder")
    refused(run(*src, "--tgt", "der hund", "--gold", "0-0 0-2"), 2, "0-2 is out of range", "3 words", "the target 2")
    refused(run(*src, "-o", tmp_path / "none" / "b.html", "-q"), 4, "b.html")
    refused(run(*src, "--json", tmp_path / "none" / "b.json", "-q"), 4, "b.json")
    both = tmp_path / "b.html", "--json", tmp_path / "none" / ".." / "b.html"
    (tmp_path / "none").mkdir()
    refused(run(*src, "-o", *both), 2, "are one file")
    refused(run(*src, "-o", tmp_path / "b.svg", "--json", tmp_path / "nodir" / "x", "-q"), 4, "nodir", "Nothing")
    refused(run(*src, "-o", tmp_path / "b.svg", "--json", tmp_path, "-q"), 4, "it is a folder")
    refused(run("attn-plot", "-m", model, "--src", " \u200b", "-o", tmp_path / "b.png"), 3, "must not be blank")
    refused(run(*src, "--tgt", "", "-o", tmp_path / "b.png"), 3, "must not be blank")
    assert not list(tmp_path.glob("b.*"))


def test_attn_plot_says_even_if_quiet_that_a_picture_is_wrong(
    run: Nmt, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = ["3 labels cut", f"{NO_FONT} x"]
    monkeypatch.setattr(plot, "plot_attention", lambda *_, **__: notes)
    command = ("attn-plot", "-m", model, "--src", "the dog", "-o", tmp_path / "a.png")
    assert run(*command)[2] == "warning: 3 labels cut\nwarning: no installed font has x\n"
    assert run(*command, "-q")[2] == "warning: no installed font has x\n"


def test_attn_plot_without_a_file_and_as_numbers_and_as_a_page(run: Nmt, model: Path, tmp_path: Path) -> None:
    pair = ("attn-plot", "-m", model, "--src", "the small dog", "--tgt", "der hund klein", "--gold", "0-0 2p1")
    code, out, err = run(*pair)
    assert code == 0 and "no causal explanation" in err and "\x1b" not in out
    text, title, head, *rows = out.splitlines()
    assert text == "der hund klein" and "cross-attention" in title and "mean entropy of 4 heads" in title
    assert head.split() == ["the", "small", "dog", "</s>"]
    assert [row.split()[0] for row in rows[:4]] == ["der", "hund", "klein", "</s>"]
    assert "[" in rows[0] and "(" in rows[1]

    code, out, err = run(*pair, "--json", "-", "-q")
    (seen,) = json.loads(out)["models"]
    assert (
        code == 0
        and err == ""
        and seen["target"] == text
        and set(seen["attention"])
        == {
            "cross",
            "encoder",
            "decoder",
        }
    )
    cross = seen["attention"]["cross"]
    assert (cross["layers"], cross["heads"], len(cross["weights"]), len(cross["weights"][0])) == (2, 2, 2, 2)
    assert cross["gold"] == [{"row": 0, "column": 0, "sure": True}, {"row": 1, "column": 2, "sure": False}]
    assert {round(sum(row), 6) for layer in cross["weights"] for head in layer for row in head} == {1.0}
    assert run(*pair, "--json", tmp_path / "a.json", "-q") == (0, f"{text}\n", "")
    assert json.loads((tmp_path / "a.json").read_text("utf-8")) == json.loads(out)

    two = ("attn-plot", "-m", model, "-m", model, "--src", "the small dog", "-q", "-o", tmp_path / "a.html")
    code, out, err = run(*two, "--attention", "decoder")
    assert (code, err) == (0, "") and out == 2 * run("translate", "-m", model, stdin=b"the small dog\n")[1]
    assert (tmp_path / "a.html").read_text("utf-8").startswith("<!doctype html>")
    grid = ("attn-plot", "-m", model, "--src", "the small dog", "-o", tmp_path / "g.svg", "--grid", "-q")
    assert run(*grid, "--attention", "decoder")[0] == 0
    drawn = (tmp_path / "g.svg").read_text("utf-8")
    assert all(f"<!-- L{layer} H{head} · " in drawn for layer in (1, 2) for head in (1, 2))
