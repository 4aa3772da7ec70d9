"""Every kind of model and of attention: trained, resumed, saved, translated alone as in company."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from nmt.bundle import Bundle
from nmt.decoding.search import Hypothesis
from nmt.decoding.translator import Translator
from nmt.errors import ConfigError, DataError
from nmt.interop.ctranslate2 import export_ctranslate2
from nmt.interop.marian_export import export_marian
from nmt.model.inference import prepare
from nmt.training import progress
from test_cli import Nmt, refused, run
from training.test_trainer import final_bytes, fit, interrupt

Figure = Callable[..., None]
__all__ = ["run"]

KINDS: dict[str, dict[str, Any]] = {
    "learned": {"positions": "learned", "max_positions": 256},
    "rope": {"positions": "rope"},
    "relative": {"positions": "relative"},
    "shaw": {"positions": "shaw"},
    "one head of keys": {"num_kv_heads": 1},
    "qk_norm": {"qk_norm": True},
    "all at once": {"positions": "rope", "num_kv_heads": 1, "qk_norm": True, "norm": "post"},
    "bahdanau": {"type": "rnn"},
    "luong_dot": {"type": "rnn", "attention": "luong_dot", "cell": "gru"},
    "luong_general": {"type": "rnn", "attention": "luong_general", "num_decoder_layers": 2, "cell": "gru"},
    "luong_concat": {"type": "rnn", "attention": "luong_concat"},
}
LINES = tiny.sentences(5)[0]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with tiny.one_thread():
        yield


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tiny.Tiny:
    return tiny.write(tmp_path_factory.mktemp("tiny"))


def translated(bundle: Bundle, together: bool) -> list[tuple[Hypothesis, ...]]:
    translator = Translator(bundle, decoding={"beam_size": 3})
    if together:
        return [found.hypotheses for found in translator.translations(LINES)]
    return [translator.translations([line])[0].hypotheses for line in LINES]


def test_neighbours_change_no_text_of_any_kind_and_no_bit_with_fixed_rows(figure: Figure, tmp_path: Path) -> None:
    texts, bits, control = 0, 0, 0
    for name, kind in KINDS.items():
        bundle = Bundle.load(tiny.save(tiny.random_bundle(**kind), tmp_path / name))
        alone, together = translated(bundle, False), translated(bundle, True)
        texts += sum(a[0].ids != b[0].ids for a, b in zip(alone, together, strict=True))
        control += alone != together
        prepare(bundle.model, "fp32", fixed_rows=True)
        bits += translated(bundle, False) != translated(bundle, True)
    count = len(KINDS)
    figure("kinds_company", f"{texts} of {count * len(LINES)} lines differ, {count} kinds", "0", texts == 0)
    shown = f"{bits} of {count} kinds by a bit; {control} without fixed rows"
    figure("kinds_company_fixed_rows", shown, "0; > 0", bits == 0 < control)


def test_forced_scores_are_the_search_s_own(figure: Figure) -> None:
    worst = 0.0
    for kind in KINDS.values():
        translator = Translator(tiny.random_bundle(**kind), decoding={"beam_size": 3})
        found = [translation.hypotheses[0] for translation in translator.translations(LINES)]
        forced = translator.score(LINES, [translator.text(hypothesis) for hypothesis in found])
        for mine, theirs in zip(found, forced, strict=True):
            if theirs is not None and mine.ids == theirs.ids:
                worst = max(worst, abs(mine.log_prob - theirs.log_prob))
    figure("kinds_forced_scores", f"{worst:.0e}", "fp32 <= 1e-4", 0 < worst <= 1e-4)


@pytest.mark.parametrize("name", ["bahdanau", "all at once", pytest.param("relative", marks=pytest.mark.slow)])
def test_resume_is_exact(name: str, corpus: tiny.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_tensorboard", lambda *_: None)
    model = {**tiny.SHAPE, "dropout": 0.1, "attention_dropout": 0.1, **KINDS[name]}
    whole, stopped = (fit_or_interrupted(corpus, tmp_path / each, model, each) for each in ("whole", "stopped"))
    assert whole == stopped


def fit_or_interrupted(corpus: tiny.Tiny, folder: Path, model: dict[str, Any], how: str) -> dict[str, object]:
    if how == "stopped":
        interrupt(corpus, folder, 3, model=model)
    fit(corpus, folder, model=model)
    return final_bytes(folder)


@pytest.mark.slow
def test_a_recurrent_model_learns_twenty_pairs_by_heart(tmp_path: Path, figure: Figure) -> None:
    few = tiny.write(
        tmp_path / "few",
        20,
        data={"valid": "train", "remove_duplicates": False},
        model={"type": "rnn", "dropout": 0.0, "embedding_dropout": 0.0},
        training={"max_updates": 250, "warmup_updates": 10, "label_smoothing": 0.0},
        validation={"every": 250},
    )
    translator = Translator(fit(few, tmp_path / "run"))
    right = sum(
        found == wanted
        for found, wanted in zip(
            translator.translate(few.src.read_text().splitlines()), few.tgt.read_text().splitlines(), strict=True
        )
    )
    figure("rnn_learns_by_heart", f"{right} of 20", ">= 18", right >= 18)


def test_learned_positions_end(run: Nmt, tmp_path: Path) -> None:
    bundle = tiny.random_bundle(positions="learned", max_positions=16, decoding={"min_length": 100})
    model = tiny.save(bundle, tmp_path / "model")
    translator = Translator(bundle)
    assert max(len(found.hypotheses[0].ids) for found in translator.translations(LINES)) == 15
    long = "der hund " * 20
    with pytest.raises(DataError, match="16 positions"):
        translator.score([long], ["der hund"])
    code, scores, said = run("score", "-m", model, stdin=f"the dog\tder hund\nthe dog\t{long}\n{long}\tder\n".encode())
    assert code == 3 and [bool(line) for line in scores.splitlines()] == [True, False, False]
    assert said.count("16 positions") == 2 and "line 3" in said
    assert len(translator.translations(["the dog"], prefixes=[long])[0].hypotheses[0].ids) == 15
    refused(run("attn-plot", "-m", model, "--src", long, "-o", tmp_path / "map.png"), 3, "16 positions")
    assert not torch.isnan(bundle.model(torch.ones(1, 40).long(), torch.ones(1, 4).long())).any()  # padding beyond


@pytest.mark.parametrize(
    ("kind", "key"),
    [({"positions": "rope"}, "positions"), ({"num_kv_heads": 1}, "num_kv_heads"), ({"qk_norm": True}, "qk_norm"),
     ({"type": "rnn"}, "type")],
)  # fmt: skip
def test_other_programs_get_no_other_attention(kind: dict[str, Any], key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{key} = "):
        export_marian(tiny.random_bundle(norm="post", **kind), tmp_path)
    pytest.importorskip("ctranslate2")
    with pytest.raises(ConfigError, match=f"{key} = "):
        export_ctranslate2(tiny.random_bundle(**kind), tmp_path)


def test_heads_of_the_other_type_do_not_matter(tmp_path: Path) -> None:
    bundle = tiny.random_bundle(type="rnn", d_model=4, num_heads=8)
    assert len(Translator(tiny.save(bundle, tmp_path / "model")).translate(LINES)) == len(LINES)


def test_keys_of_the_other_type_are_named(
    run: Nmt, corpus: tiny.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_tensorboard", lambda *_: None)
    changes = ("--set", "model.type=rnn", "--set", "training.max_updates=1", "--set", "validation.every=1")
    _, _, said = run("train", corpus.toml, "--out", tmp_path / "run", "--cache", corpus.cache, *changes)
    assert 'type = "rnn" with these keys does not use num_heads, d_ff' in said
    code, shown, _ = run("model", "info", "-m", tmp_path / "run")
    assert code == 0 and "cell lstm" in shown and "num_heads" not in shown
