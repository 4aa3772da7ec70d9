"""Lines to lines: as many out as in, each its own translation whatever is around it."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import tiny
from nmt.bundle import Bundle
from nmt.config import TokenizerConfig
from nmt.decoding import translator as translator_module
from nmt.decoding.translator import Translator, pick_device
from nmt.errors import BundleError, ConfigError
from nmt.model.kv_cache import DecoderState
from nmt.text.tokenizer import Tokenizer, train_sentencepiece

BLANK = ["", " ", "\t", "\u00a0", "\u3000", "\u200b", "\ufeff\u200d", "\x00\x07", "\u2028", "\x0c\x1b"]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return tiny.random_bundle(decoding={"max_length_ratio": 1.0})


def test_line_k_in_is_line_k_out(bundle: Bundle) -> None:
    words = tiny.sentences(len(BLANK))[0]
    lines = [line for pair in zip(BLANK, words, strict=True) for line in pair]
    out = Translator(bundle).translate(lines)
    assert len(out) == len(lines)
    assert out[::2] == [""] * len(BLANK)
    assert out[1::2] == Translator(bundle).translate(words) and all(out[1::2])
    assert all("\n" not in line and "\r" not in line for line in out)


def test_nothing_and_blank_lines_alone(bundle: Bundle) -> None:
    def fail(*_: object) -> DecoderState:
        raise AssertionError("a blank line met the model")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(bundle.model), "prefill", fail)
        assert Translator(bundle).translate([]) == []
        assert Translator(bundle).translate(BLANK) == [""] * len(BLANK)
        with pytest.raises(AssertionError, match="met the model"):  # the control
            Translator(bundle).translate(["dog"])


def test_batches_and_order_do_not_matter(bundle: Bundle, figure: Callable[..., None]) -> None:
    lines = tiny.sentences(40)[0]
    differing = compared = 0
    for beam in (1, 4):
        alone = [Translator(bundle, decoding={"beam_size": beam}).translate([line])[0] for line in lines]
        assert len(set(alone)) > 20  # the lines differ, else the comparison would say nothing
        settings = ((1, 10**6, None), (7, 10**6, None), (256, 50, None), (256, 16_384, 1), (10**6, 10**6, 2))
        for batch_rows, batch_tokens, seed in settings:
            order = list(range(len(lines)))
            if seed is not None:
                random.Random(seed).shuffle(order)
            translator = Translator(
                bundle, decoding={"beam_size": beam}, batch_rows=batch_rows, batch_tokens=batch_tokens
            )
            out = translator.translate([lines[place] for place in order])
            differing += sum(text != alone[place] for place, text in zip(order, out, strict=True))
            compared += len(lines)
    figure("batch_text_differences", f"{differing} of {compared} translations", "0", differing == 0)


@pytest.mark.parametrize("coverage_penalty", [0.0, 0.5])
def test_workers_change_nothing(bundle: Bundle, coverage_penalty: float) -> None:
    lines, decoding = tiny.sentences(100)[0], {"beam_size": 3, "coverage_penalty": coverage_penalty}
    found = [Translator(bundle, decoding=decoding, num_workers=n, batch_rows=24).translations(lines) for n in (1, 3)]
    assert found[0] == found[1] and all(translation.text for translation in found[0])


def test_a_batch_that_does_not_fit_is_tried_in_halves(
    bundle: Bundle, figure: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = tiny.sentences(50)[0]
    whole = Translator(bundle).translate(lines)
    search, refused = Translator.search, []

    def fits_three(self: Translator, src_ids: list[list[int]], *rest: object) -> object:
        if len(src_ids) > 3:
            refused.append(len(src_ids))
            raise torch.OutOfMemoryError("CUDA out of memory")
        return search(self, src_ids, *rest)

    monkeypatch.setattr(Translator, "search", fits_three)
    parts = Translator(bundle).translate(lines)
    differing = sum(a != b for a, b in zip(whole, parts, strict=True))
    shown = f"{differing} of {len(lines)} lines differ after {len(refused)} batches were refused"
    figure("translate_out_of_memory", shown, "0 after >= 10", differing == 0 and len(refused) >= 10)
    monkeypatch.setattr(translator_module, "is_out_of_memory", lambda error: False)  # the control
    with pytest.raises(torch.OutOfMemoryError):
        Translator(bundle).translate(lines)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("beam_size", [1, 5, 50])
def test_a_line_is_never_answered_by_nothing(bundle: Bundle, alpha: float, beam_size: int) -> None:
    decoding = {"beam_size": beam_size, "length_penalty": alpha}
    for kind in ("gnmt", "power"):
        found = Translator(bundle, decoding={**decoding, "length_penalty_type": kind}).translations(
            tiny.sentences(20)[0]
        )
        assert all(translation.hypotheses[0].ids for translation in found)


def test_a_line_of_a_thousand_pieces(bundle: Bundle) -> None:
    line = " ".join(random.Random(1).choices(["the", "dog", "cat", "sees", "small", "house"], k=1000))
    assert len(bundle.tokenizer.encode_src([line])[0]) > 1000
    short = "the small dog"
    out = Translator(bundle, decoding={"beam_size": 1}).translate([short, line, short])
    assert out[0] == out[2] == Translator(bundle, decoding={"beam_size": 1}).translate([short])[0] and out[1]


def test_control_pieces_in_the_text_are_text(bundle: Bundle) -> None:
    special = bundle.tokenizer.special
    ids = bundle.tokenizer.encode_src(["the </s> dog <s> <pad> sees"])[0]
    assert ids[-1] == special.eos and not {special.eos, special.bos, special.pad} & set(ids[:-1])
    assert len(Translator(bundle).translate(["the </s> dog <s> <pad> sees", "a cat"])) == 2


@pytest.mark.parametrize("beam", [1, 3])
def test_a_model_that_never_ends_stops_at_the_limit(beam: int) -> None:
    bundle = tiny.random_bundle(decoding={"max_length_ratio": 1.5, "max_length_extra": 7})
    step, eos = bundle.model.decode_step, bundle.tokenizer.special.eos

    def never(tokens: Tensor, state: DecoderState) -> Tensor:
        logits = step(tokens, state)
        logits[..., eos] = -1e4
        return logits

    bundle.model.decode_step = never  # type: ignore[method-assign]
    translator = Translator(bundle, decoding={"beam_size": beam})
    sources = bundle.tokenizer.encode_src(["the dog", "a small cat sees the big old house"])
    for ids, found in zip(sources, translator.search(sources), strict=True):
        assert len(found[0].ids) + 1 == int(len(ids) * 1.5) + 7


def test_never_unknown_nor_control_pieces(bundle: Bundle) -> None:
    special = bundle.tokenizer.special
    for hypotheses in Translator(bundle).search(bundle.tokenizer.encode_src(tiny.sentences(20)[0])):
        for hypothesis in hypotheses:
            assert hypothesis.ids and not {special.pad, special.bos, special.unk, special.eos} & set(hypothesis.ids)


def test_defaults_are_the_bundles() -> None:
    bundle = tiny.random_bundle(decoding={"beam_size": 3, "length_penalty": 0.9, "min_length": 2})
    translator = Translator(bundle)
    options = translator.options
    assert (options.beam_size, options.length_penalty, translator.decoding.min_length) == (3, 0.9, 2)
    options = Translator(bundle, decoding={"beam_size": 1, "length_penalty": 0.0}).options
    assert (options.beam_size, options.length_penalty) == (1, 0.0)


def test_use_as_a_library(tmp_path_factory: pytest.TempPathFactory, bundle: Bundle) -> None:
    from nmt import Translator as FromPackage

    folder = tiny.save(bundle, tmp_path_factory.mktemp("library") / "b")
    assert FromPackage is Translator
    lines = ["the dog sees a cat", "", "a bird"]
    for path in (folder, str(folder)):
        assert FromPackage(path, device="cpu", precision="fp32").translate(lines) == Translator(bundle).translate(lines)
    with pytest.raises(BundleError, match="is no model"):
        FromPackage(folder / "nowhere")


def test_devices() -> None:
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto").type in ("cpu", "cuda", "mps")
    with pytest.raises(ConfigError, match="--device gpu is not available here; this machine has: auto, cpu"):
        pick_device("gpu")


def test_a_library_call_takes_lists_of_lines(bundle: Bundle) -> None:
    translator = Translator(bundle)
    lines = tiny.sentences(3)[0]
    assert translator.translate(line for line in lines) == translator.translate(lines)
    with pytest.raises(TypeError, match="one string"):
        translator.translate(lines[0])
    with pytest.raises(ValueError, match="1 prefixes for 3 lines"):
        translator.translations(lines, prefixes=["a"])
    with pytest.raises(ValueError, match="1 translations for 3 lines"):
        translator.score(lines, ["a"])
    with pytest.raises(ConfigError, match="did you mean beam_size"):
        Translator(bundle, decoding={"beamsize": 3})


def test_the_tag_stands_before_every_line() -> None:
    """As if it had been written there; blank lines stay blank, and a tag that the model does not have is refused."""
    options = TokenizerConfig(vocab_size=150, byte_fallback=False, user_symbols=["<2de>"])
    sources, targets = tiny.sentences(200)
    model = train_sentencepiece(sources + targets, options)
    plain = tiny.random_bundle()
    bundle = Bundle(plain.config, plain.model, Tokenizer(model))
    assert bundle.tokenizer.src_vocab_size == plain.config.src_vocab_size
    lines = [*tiny.sentences(10)[0], "", " "]
    behind = Translator(bundle, decoding={"tag": "<2de>"}).translate(lines)
    assert behind == Translator(bundle).translate([f"<2de> {line}" if line.strip() else line for line in lines])
    assert behind != Translator(bundle).translate(lines) and behind[-2:] == ["", ""]
    with pytest.raises(ConfigError, match=r"The tag <lo> is no user symbol of the tokenizer: it knows <2de>\."):
        Translator(bundle, decoding={"tag": "<lo>"})
