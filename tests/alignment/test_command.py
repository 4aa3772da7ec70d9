"""`nmt translate --alignments` and `nmt eval --align`, on random models and on attention that is planted."""

import errno
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, partialmethod
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tiny
from nmt.alignment.links import token_numbers
from nmt.alignment.maps import pair_maps
from nmt.alignment.words import merge_to_words
from nmt.bundle import Bundle
from nmt.cli import _run
from nmt.cli.alignments import align_texts, align_translations
from nmt.cli.streams import Beside
from nmt.decoding.attention import HeadChoice, forced_attention
from nmt.decoding.protected import ProtectingTranslator
from nmt.decoding.translator import Translator
from nmt.errors import StorageError
from nmt.model.attention import record_attention
from nmt.model.maps import cross_attention, numbers_of_cross_attention
from nmt.model.seq2seq import Seq2Seq
from nmt.text.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")
Run = Callable[..., tuple[int, str, str]]
LINES = ["the small dog sees", "", "a cat", "the man hears the bird and the child", " the  dog ", "\u200b"]
CHOICES = [HeadChoice(), HeadChoice(2, 0, True), HeadChoice(3, 2)]


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return tiny.random_bundle(decoding={"max_length_ratio": 1.0, "min_length": 4}, num_decoder_layers=4)


@pytest.fixture(scope="module")
def model(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(bundle, tmp_path_factory.mktemp("model") / "bundle")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> Run:
    """`run(lines, *options)`: exit code, stdout and stderr of nmt translate."""

    def call(lines: Sequence[str], *options: object) -> tuple[int, str, str]:
        file = tmp_path / "in"
        file.write_text("".join(f"{line}\n" for line in lines))
        capsys.readouterr()
        code = _run(["translate", "-m", str(model), "-i", str(file), *map(str, options)], False)
        return code, *capsys.readouterr()

    return call


def by_hand(bundle: Bundle, line: str, ids: Sequence[int], choice: HeadChoice) -> str:
    """Links of plain text from the weights of one pair alone, by the words that "▁" opens."""
    tokenizer = bundle.tokenizer
    src_ids, tgt_ids = tokenizer.encode_src([line])[0], [*ids, tokenizer.special.eos]
    maps = pair_maps(bundle, src_ids, tgt_ids).cross
    layers = maps[2:] if not choice.layer else maps[[choice.layer - 1]]
    heads = layers if not choice.head else layers[:, [choice.head - 1]]
    weights = heads.mean((0, 1))
    weights = weights[1:] if choice.shift else weights[:-1]
    merged, _, words = merge_to_words(weights[:, :-1], tokenizer.src_pieces(src_ids[:-1]), tokenizer.tgt_pieces(ids))
    return " ".join(f"{merged[j].argmax()}-{j}" for j in range(len(words)))


@pytest.mark.parametrize("choice", CHOICES)
def test_links_are_those_of_the_printed_text(run: Run, bundle: Bundle, tmp_path: Path, choice: HeadChoice) -> None:
    file = tmp_path / "links"
    heads = ["--align-layer", choice.layer, "--align-head", choice.head]
    heads += ["--align-shift"] if choice.shift else []
    code, out, err = run(LINES, "--alignments", file, *heads)
    assert (code, err) == (0, "") and out == run(LINES)[1]
    found = file.read_text().split("\n")[:-1]
    translations = Translator(bundle).translations(LINES)
    ids = [each.hypotheses[0].ids if each.hypotheses else () for each in translations]
    expected = {
        each: [
            by_hand(bundle, line, of_line, each) if of_line else "" for line, of_line in zip(LINES, ids, strict=True)
        ]
        for each in CHOICES
    }
    assert found == expected[choice]
    assert [bool(links) for links in found] == [bool(line) for line in out.splitlines()]
    assert len(set(map(tuple, expected.values()))) == 3  # the control: another choice, other links


def test_objects(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "links"
    plain = run(LINES, "--alignments", file)
    links = file.read_text()
    objects = [json.dumps({"text": line, "alignment": "old"}) for line in LINES]
    code, out, _ = run(objects, "--format", "jsonl", "--alignments", file, "--n-best", 2)
    answers = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and file.read_text() == links
    assert [each["alignment"] for each in answers] == links.split("\n")[:-1]
    assert [each["translation"] for each in answers] == plain[1].split("\n")[:-1]
    file.unlink()
    assert run(objects, "--format", "jsonl", "--alignments", "-", "--n-best", 2)[1] == out and not file.exists()
    assert json.loads(run(objects[:1], "--format", "jsonl")[1])["alignment"] == "old"  # a field as any other
    code, out, _ = run(["{", objects[0], ""], "--format", "jsonl", "--alignments", file)
    assert code == 3 and [bool(line) for line in file.read_text().split("\n")] == [False, True, False, False]
    assert [line[:1] for line in out.split("\n")] == ["{", "{", "", ""]


def test_links_do_not_depend_on_the_batch(run: Run, tmp_path: Path) -> None:
    lines = [*tiny.sentences(6)[0], *LINES]
    assert run(lines, "--alignments", tmp_path / "one")[0] == 0
    assert run(lines[::-1], "--alignments", tmp_path / "other", "--line-buffered", "--batch-rows", 2)[0] == 0
    one, other = ((tmp_path / name).read_text().split("\n")[:-1] for name in ("one", "other"))
    assert one == other[::-1] and len(set(one)) > 5


@pytest.mark.parametrize(
    "line", ["The dog sees. A cat hears the tree!  The old man", "\x07 The dog sees.\u2028A cat\u00a0hears the tree!"]
)
def test_a_line_in_parts(bundle: Bundle, line: str) -> None:
    """The links of its sentences, each moved to where the sentence stands in the line and its translation."""
    whole = Translator(bundle, decoding={"split_sentences": "always"})
    (translation,) = whole.translations([line])
    (found,) = align_translations(whole, [line], [translation])
    alone = Translator(bundle, decoding={"split_sentences": "never"})
    expected, first_src, first_tgt = set(), line.split().index("The"), 0
    assert len(translation.parts) > 1
    for part in translation.parts:
        (sentence,) = alone.translations([part.text])
        (links,) = align_translations(alone, [part.text], [sentence])
        expected |= {(i + first_src, j + first_tgt) for i, j in links or ()}
        first_src, first_tgt = first_src + len(part.text.split()), first_tgt + len(sentence.text.split())
    assert found == expected and first_tgt == len(translation.text.split())
    assert all(line.split()[i] for i, _ in expected)


def test_a_long_line_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many parts a line without spaces is cut into."""
    calls: list[str] = []

    def counted(plain: Callable[..., Any], *arguments: Any) -> Any:
        calls.append(plain.__name__)
        return plain(*arguments)

    for name in ("src_spans", "encode_src"):
        monkeypatch.setattr(Tokenizer, name, partialmethod(partial(counted, getattr(Tokenizer, name))))
    monkeypatch.setattr("nmt.cli.alignments.token_numbers", partial(counted, token_numbers))
    found: list[tuple[int, list[str]]] = []
    for most in (100, 10):
        translator = Translator(tiny.random_bundle(decoding={"max_length_ratio": 1.0, "beam_size": 1, "min_length": 2}))
        monkeypatch.setattr(translator.cutter, "_most_pieces", most)
        lines = ["dog" * 90]
        translations = translator.translations(lines)
        calls.clear()
        assert align_translations(translator, lines, translations)[0]
        found.append((len(translations[0].parts), list(calls)))
    (few, of_few), (many, of_many) = found
    assert many > 5 * few and of_many == of_few == ["src_spans", "token_numbers", "token_numbers"]


def test_a_line_with_items(bundle: Bundle) -> None:
    translator = Translator(bundle)
    lines = ["the <b>small dog</b> {0} sees", "the dog", "{0}", ""]
    found = ProtectingTranslator(translator).translations(lines)
    links = align_translations(translator, lines, found)
    for line, translation, of_line in zip(lines, found, links, strict=True):
        targets = [j for _, j in of_line or ()]
        assert sorted(targets) == list(range(len(translation.text.split())))
        assert all(0 <= i < len(line.split()) for i, _ in of_line or ())


def test_what_is_too_long_is_told(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.decoding.attention.MOST_WEIGHTS", 160)
    long = "the man hears the bird and the child " * 4
    code, _, err = run(["a cat", long], "--alignments", tmp_path / "links")
    assert code == 0 and "warning: " in err and "1 line(s) (2) have no alignment" in err
    assert [bool(line) for line in (tmp_path / "links").read_text().split("\n")] == [True, False, False]
    answers = run([json.dumps({"text": long})], "--format", "jsonl", "--alignments", "-", "--quiet")
    assert json.loads(answers[1])["alignment"] is None and answers[2] == ""


def test_memory_is_bounded(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short targets of long sources: the sources' own attention is not kept, and no batch is larger than allowed."""
    special = bundle.tokenizer.special
    pairs = [([5] * 60 + [special.eos], [6, 7, special.eos])] * 12
    one_by_one = [forced_attention([bundle.model], special, [pair])[0] for pair in pairs[:1]]
    numbers = numbers_of_cross_attention(bundle.model, 64, 3)
    batches: list[int] = []
    names: list[str] = []

    def spy(model: Seq2Seq, src_BS: Tensor, *rest: Tensor) -> list[Tensor]:
        batches.append(len(src_BS))
        if len(src_BS) > 3:
            raise RuntimeError("CUDA out of memory.")
        return cross_attention(model, src_BS, *rest)

    @contextmanager
    def recording(model: Seq2Seq, only: str = "") -> Iterator[dict[str, Tensor]]:
        with record_attention(model, only) as weights:
            yield weights
        names.extend(weights)

    monkeypatch.setattr("nmt.decoding.attention.cross_attention", spy)
    monkeypatch.setattr("nmt.model.maps.record_attention", recording)
    for most, expected in ((3, [3] * 4), (5, [5, 2, 3, 5, 2, 3, 2]), (0, [1] * 12)):
        batches.clear()
        monkeypatch.setattr("nmt.decoding.attention.MOST_NUMBERS", most * numbers)
        found = forced_attention([bundle.model], special, pairs)
        assert batches == expected  # those of five do not fit into memory, and are halved
        assert all(each is not None and np.allclose(each, one_by_one[0], atol=1e-6) for each in found)
    assert len(set(names)) == 4 and all(name.endswith("cross_attention") for name in names)
    with record_attention(bundle.model) as weights:  # the control: there is more to record
        bundle.model.states(torch.tensor([[5, special.eos]]), torch.tensor([[special.bos]]))
    assert len(weights) > 8


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--alignments", "-"], "--alignments - needs --format jsonl"),
        (["--alignments", "OUT", "-o", "OUT"], "are one file"),
        (["--alignments", "IN"], "would write over"),
        (["--alignments", "OUT", "--prefix", "OUT"], "would write over"),
        (["--alignments", "OUT", "--align-layer", "5"], "align_layer = 5, but the model has 4"),
        (["--alignments", "OUT", "--align-layer", "1", "--align-head", "3"], "align_head = 3, but the model has 2"),
        (["--align-threshold", "2"], "align_threshold = 2.0"),
    ],
)
def test_what_is_refused(run: Run, tmp_path: Path, options: list[str], said: str) -> None:
    out = tmp_path / "links"
    code, printed, err = run(
        LINES, *[{"OUT": str(out), "IN": str(tmp_path / "in")}.get(option, option) for option in options]
    )
    assert (code, printed) == (2, "") and said in err and not out.exists()


def test_links_that_nobody_takes(run: Run, tmp_path: Path) -> None:
    """The file is named, and half a result is not left; who reads translations may have seen enough."""
    fifo, out = tmp_path / "fifo", tmp_path / "out"
    os.mkfifo(fifo)
    reader = Thread(target=lambda: fifo.open("rb").close())
    reader.start()
    code, printed, err = run(LINES[:3], "--alignments", fifo, "-o", out, "--beam-size", 1)
    reader.join()
    assert (code, printed) == (4, "") and f"Cannot write {fifo}: Broken pipe" in err and not out.exists()
    code, _, err = run(LINES[:3], "--alignments", "/dev/full", "-o", out)
    assert code == 4 and "Cannot write /dev/full: No space left" in err and not out.exists()
    with pytest.raises(BrokenPipeError):
        Beside(Gone(), io.BytesIO(), fifo).write(b"a\t0-0\n")
    with pytest.raises(StorageError, match="fifo"):
        Beside(io.BytesIO(), Gone(), fifo).write(b"a\t0-0\n")


class Gone(io.BytesIO):
    """A stream whose reader went away."""

    def write(self, data: object, /) -> int:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def test_learned_positions_are_a_limit() -> None:
    """Of either side, the end included: what lies behind has no position, and attention there means nothing."""
    limited = Translator(tiny.random_bundle(positions="learned", max_positions=16))
    tokenizer = limited.bundle.tokenizer
    assert len(tokenizer.encode_tgt(["hund " * 15])[0]) == 16
    src, tgt = ["dog"] * 3 + ["dog " * 16], ["hund", "hund " * 15, "hund " * 16, "hund"]
    seen = [True, True, False, False]
    assert [each is not None for each in align_texts(limited, src, tgt)] == seen
    assert None not in align_texts(Translator(tiny.random_bundle()), src, tgt)  # the control
    pairs = list(zip(limited.encode(src), tokenizer.encode_tgt(tgt), strict=True))  # as --protect has them
    assert [each is not None for each in forced_attention(limited.models, tokenizer.special, pairs)] == seen


def test_two_streams() -> None:
    one, other = io.BytesIO(), io.BytesIO()
    both = Beside(one, other, Path("links"))
    both.write(b"der hund\t0-0 1-1\n\t\n")
    both.write(b'{"a": "\\t"}\t\n')
    assert (one.getvalue(), other.getvalue()) == (b'der hund\n\n{"a": "\\t"}\n', b"0-0 1-1\n\n\n")


# Against gold


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Attention that knows: head 2 of layer 3, when a token is read. Options: texts, and gold, word k with n - k."""

    def maps(model: object, src_BS: Tensor, tgt_in_BT: Tensor, keep_BS: Tensor) -> list[Tensor]:
        shape = 2, tgt_in_BT.shape[1], src_BS.shape[1]
        cross = [torch.rand(len(src_BS), *shape, generator=torch.Generator().manual_seed(k)) for k in range(4)]
        for row in range(len(src_BS)):
            last = int(keep_BS[row].sum()) - 2  # before EOS
            for t in range(1, tgt_in_BT.shape[1]):
                cross[2][row, 1, t, max(0, last - (t - 1))] = 1.01
        return cross

    monkeypatch.setattr("nmt.decoding.attention.cross_attention", maps)
    tokenizer = tiny.tokenizer()
    kept = [  # each word a piece, so that what is planted on pieces is of words
        (src, tgt)
        for src, tgt in zip(*tiny.sentences(200), strict=True)
        if all(
            len(encode([text])[0]) == len(text.split()) + 1
            for encode, text in ((tokenizer.encode_src, src), (tokenizer.encode_tgt, tgt))
        )
    ][:10]
    assert len(kept) == 10
    gold = [" ".join(f"{len(src.split()) - 1 - j}-{j}" for j in range(len(src.split()))) for src, _ in kept]
    for name, lines in (("src", [s for s, _ in kept]), ("tgt", [t for _, t in kept]), ("gold", gold)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    return [f"--{option}={tmp_path / name}" for option, name in (("align", "gold"), ("src", "src"), ("tgt", "tgt"))]


def scores(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, object]]:
    capsys.readouterr()
    assert _run(["eval", "--json", *map(str, arguments)], False) == 0
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return found


def test_the_right_head_is_found(
    planted: list[str], bundle: Bundle, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    figure: Callable[..., None],
) -> None:  # fmt: skip
    (default,) = scores(capsys, "-m", model, *planted)
    chosen = ["--align-layer=3", "--align-head=2"]
    (right,) = scores(capsys, "-m", model, *planted, *chosen, "--align-shift")
    (unshifted,) = scores(capsys, "-m", model, *planted, *chosen, "--no-align-shift")
    assert right["AER"] == 0 and right["precision"] == right["recall"] == 100
    assert float(str(unshifted["AER"])) > 60 and float(str(default["AER"])) > 30
    (by_gold,) = scores(capsys, "-m", model, *planted, "--choose=gold")
    assert (by_gold["align_layer"], by_gold["align_head"], by_gold["align_shift"], by_gold["AER"]) == (3, 2, True, 0)
    assert (by_gold["chosen_on"], by_gold["scored_on"]) == ("1-5", "6-10") and "chosen_on" not in right
    assert _run(["eval", "-m", str(model), *planted, "--choose=gold"], False) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[1] == "chosen on lines 1-5, scored on lines 6-10"
    assert printed[2].endswith("[decoding]: align_layer = 3, align_head = 2, align_shift = true")
    heads = scores(capsys, "-m", model, *planted, "--by-head")
    assert len(heads) == 2 * (1 + 4 * 3) and [row["AER"] == 0 for row in heads[:2]] == [True, False]
    assert heads == sorted(heads, key=lambda row: float(str(row["AER"])))

    back = Bundle(bundle.config.model_copy(update={"src_lang": "de", "tgt_lang": "en"}), bundle.model, bundle.tokenizer)
    reverse = tiny.save(back, tmp_path / "back")
    rows = scores(capsys, "-m", model, *planted, "--reverse-model", reverse, "--choose=agreement")
    assert [row["AER"] for row in rows] == [0] * 7 and rows[1]["align_layer"] == 3
    rows = scores(capsys, "-m", model, *planted, "--reverse-model", reverse)
    assert [row["links_of"] for row in rows][:3] == ["forward", "reverse", "intersection"]
    assert len({row["AER"] for row in rows}) > 2  # of what does not agree each method makes something else
    figure("planted_head_found", f"AER {by_gold['AER']:.0f}, default {default['AER']:.0f}", "0", by_gold["AER"] == 0)


def test_links_alone(planted: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gold = tmp_path / "gold"
    (row,) = scores(capsys, planted[0], "--hyp", gold)
    assert (row["AER"], row["links"]) == (0, row["sure"])
    turned = tmp_path / "turned"  # the wrong direction
    turned.write_text("".join(f"0-{k}\n" for k in range(10)))
    (row,) = scores(capsys, planted[0], "--hyp", turned)
    assert float(str(row["AER"])) > 80
    assert _run(["eval", planted[0], "--hyp", str(turned)], False) == 0
    assert capsys.readouterr().out.startswith("links AER ")


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--align=GOLD"], 2, "give either -m MODEL"),
        (["--align=GOLD", "--hyp=GOLD", "--src=GOLD"], 2, "leave out --src"),
        (["--align=GOLD", "-m", "MODEL"], 2, "needs both texts"),
        (["--align=GOLD", "-m", "MODEL", "--src=SRC", "--tgt=SRC", "--choose=agreement"], 2, "give --reverse-model"),
        (["--align=GOLD", "-m", "MODEL", "--src=SRC", "--tgt=SRC", "--choose=gold", "--by-head"], 2, "one of them"),
        (
            ["--align=GOLD", "-m", "MODEL", "--src=SRC", "--tgt=SRC", "--reverse-model=MODEL"],
            2,
            "the way back of en-de",
        ),
        (["--align=GOLD", "--hyp=GOLD", "--ref=GOLD"], 2, "leave out --ref"),
        (["--hyp=GOLD", "--ref=GOLD", "--by-head"], 2, "go with --align"),
        (["--align=GOLD", "--hyp=SHORT"], 3, "has 10 line(s)"),
        (["--align=GOLD", "-m", "MODEL", "--src=SRC", "--tgt=SHORT"], 3, "line k of both"),
        (["--align=SHORT", "-m", "MODEL", "--src=SHORT", "--tgt=SHORT", "--choose=gold"], 3, "2 at least"),
        (["--align=SRC", "--hyp=GOLD"], 3, "src, line 1"),
        (["--align=WIDE", "-m", "MODEL", "--src=SRC", "--tgt=SRC"], 3, "wide, line 10: there is a link 99-0"),
        (["--align=GONE", "--hyp=GOLD"], 3, "Cannot read"),
    ],
)
def test_what_eval_refuses(
    planted: list[str], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], code: int,
    said: str,
) -> None:  # fmt: skip
    (tmp_path / "short").write_text("0-0\n")
    (tmp_path / "wide").write_text("0-0\n" * 9 + "99-0\n")
    places = {name.upper(): tmp_path / name for name in ("gold", "src", "short", "wide", "gone")} | {"MODEL": model}
    named = [f"{a}={places[b]}" if (b := o.partition("=")[2]) in places else str(places.get(o, o))
             for o in options for a in [o.partition("=")[0]]]  # fmt: skip
    assert _run(["eval", *named], False) == code
    printed, err = capsys.readouterr()
    assert printed == "" and said in err and "Traceback" not in err
