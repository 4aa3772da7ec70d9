"""`nmt model check`: planted faults are found by the check that names them, sound models raise nothing."""

import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import tiny
from nmt.bundle import Bundle
from nmt.cli import _run
from nmt.config import ModelConfig
from nmt.diagnosis import learning, outputs
from nmt.diagnosis.check import MODEL_CHECKS, check_model, check_text, name_of
from nmt.diagnosis.findings import Findings, Level, as_records, broken, is_broken
from nmt.diagnosis.learning import overfit
from nmt.diagnosis.memory import bytes_to_check, measure, memory, saved_bytes, state_bytes, usual_length
from nmt.diagnosis.outputs import Text
from nmt.diagnosis.probes import attention_weights, future_unseen, head_use, order_seen, score_scale, source_read
from nmt.diagnosis.subject import Subject
from nmt.model import attention
from nmt.model.attention import CrossAttention
from nmt.model.build import build_model
from nmt.model.positions import SinusoidalPositions
from nmt.model.transformer import Transformer
from nmt.text.tokenizer import SpecialIds
from oracle import skip_reorder, take_a_slot_in_use

Figure = Callable[..., None]
Plant = Callable[[pytest.MonkeyPatch, Transformer], object]
QUICK = tuple(check for check in MODEL_CHECKS if check is not overfit)
GOLDEN = Path(__file__).parent.parent / "faults" / "golden" / "0.6.0"
VOCAB = 40
# What every sound shape is drawn for; each new form of attention, positions or model gets a line here.
KINDS: list[dict[str, object]] = [
    {},
    {"positions": "rope", "num_heads": 2, "num_kv_heads": 1, "qk_norm": True},
    {"positions": "relative"},
    {"type": "rnn", "attention": "luong_concat"},
    {"positions": "learned", "max_positions": 256},
    {"positions": "shaw"},
    {"qk_norm": True},
    {"num_heads": 2, "num_kv_heads": 1},
    {"type": "rnn"},
    {"type": "rnn", "attention": "luong_dot", "cell": "gru"},
    {"type": "rnn", "attention": "luong_general"},
]


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with tiny.one_thread():
        yield


def fresh(**config: object) -> Subject:
    shape = ModelConfig(
        **{"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 32, "num_heads": 2, "d_ff": 64, **config}
    )
    torch.manual_seed(3)
    return Subject(build_model(shape, VOCAB, VOCAB), shape, SpecialIds(), fresh=True)


def golden() -> Subject:
    """A model that was trained."""
    bundle = Bundle.load(GOLDEN / "bundle")
    return Subject(bundle.model, bundle.config.model, bundle.tokenizer.special, fresh=False)


def raised(findings: Findings) -> dict[str, str]:
    return {name: f.found for name, f in findings.items() if f.level in (Level.suspicious, Level.broken)}


def random_shapes(count: int, layers: int = 3) -> list[dict[str, object]]:
    rng = np.random.default_rng(8)
    shapes = []
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        heads = int(str(kind.get("num_heads", rng.integers(1, 5))))
        d_model = heads * int(rng.choice([8, 12, 16]))
        drawn: dict[str, object] = {
            "num_encoder_layers": int(rng.integers(1, layers + 1)),
            "num_decoder_layers": int(rng.integers(1, layers + 1)),
            "d_model": d_model,
            "num_heads": heads,
            "d_ff": d_model * int(rng.integers(1, 5)),
            "norm": str(rng.choice(["pre", "post"])),
            "activation": str(rng.choice(["relu", "gelu", "swiglu"])),
            "tied_embeddings": str(rng.choice(["none", "decoder", "all"])),
            "attention_dropout": float(rng.choice([0.0, 0.1])),
        }
        shapes.append(drawn | kind)
    return shapes


# Faults


def change_attention(patch: pytest.MonkeyPatch, change: Callable[..., tuple[Tensor, dict[str, object]]]) -> None:
    """Both kernels get another query and other masks."""
    for kernel in ("attend_plain", "attend_fused"):

        def changed(
            q: Tensor,
            k: Tensor,
            v: Tensor,
            *,
            attend: Callable[..., object] = getattr(attention, kernel),
            **how: object,
        ) -> object:
            q, how = change(q, **how)
            return attend(q, k, v, **how)

        patch.setattr(attention, kernel, changed)


def no_scaling(patch: pytest.MonkeyPatch, model: Transformer) -> None:
    change_attention(patch, lambda q, **how: (q * q.shape[-1] ** 0.5, how))


def scaled_in_one_kernel(patch: pytest.MonkeyPatch, model: Transformer) -> None:
    plain = attention.attend_plain
    no_scaling(patch, model)
    patch.setattr(attention, "attend_plain", plain)


def no_causal_mask(patch: pytest.MonkeyPatch, model: Transformer) -> None:
    change_attention(patch, lambda q, **how: (q, how | {"causal": False}))


def inverted_mask(patch: pytest.MonkeyPatch, model: Transformer) -> None:
    def inverted(q: Tensor, **how: object) -> tuple[Tensor, dict[str, object]]:
        keep = how.get("keep")
        is_mask = isinstance(keep, Tensor) and keep.dtype == torch.bool and not bool(keep.all())
        return q, how | ({"keep": ~keep} if is_mask else {})  # type: ignore[operator]

    change_attention(patch, inverted)


def no_mask(patch: pytest.MonkeyPatch, model: Transformer) -> None:
    change_attention(patch, lambda q, **how: (q, how | {"keep": None}))


def no_positions(patch: pytest.MonkeyPatch, model: Transformer) -> None:
    forward = SinusoidalPositions.forward
    patch.setattr(SinusoidalPositions, "forward", lambda *given, **how: torch.zeros_like(forward(*given, **how)))


def frozen_decoder(patch: pytest.MonkeyPatch, model: Transformer) -> None:
    model.decoder.requires_grad_(False)


def cut_graph(patch: pytest.MonkeyPatch, model: Transformer) -> None:
    encode = Transformer.encode
    patch.setattr(Transformer, "encode", lambda *given: encode(*given).detach())


def source_not_read(patch: pytest.MonkeyPatch, model: Transformer) -> None:
    forward = CrossAttention.forward
    patch.setattr(CrossAttention, "forward", lambda *given, **how: 0 * forward(*given, **how))


@torch.no_grad()
def nan_weight(patch: pytest.MonkeyPatch, model: Transformer) -> None:
    next(iter(model.decoder.parameters()))[0, 0] = torch.nan


@torch.no_grad()
def dead_head(patch: pytest.MonkeyPatch, model: Transformer) -> None:
    query = model.decoder[1].cross_attention.q
    query.weight[: model.head_dim], query.bias[: model.head_dim] = 0.0, 0.0


@torch.no_grad()
def zeroed(patch: pytest.MonkeyPatch, model: Transformer) -> None:
    model.encoder[0].feed_forward.down.weight.zero_()


@torch.no_grad()
def wide_embeddings(patch: pytest.MonkeyPatch, model: Transformer) -> None:
    model.output.weight.mul_(30.0)


FIVE: list[tuple[Plant, str, str]] = [
    (no_scaling, "score scale", "not scaled by 1 / sqrt(head size)"),
    (no_positions, "order seen", "the source and the target has no positions"),
    (no_causal_mask, "future unseen", "causal mask"),
    (frozen_decoder, "gradients", "requires_grad is False"),
    (inverted_mask, "padding unseen", "inverted sense"),
]
MORE: list[tuple[Plant, str, str]] = [
    (source_not_read, "source read", "cross-attention does not read the encoder"),
    (lambda patch, model: skip_reorder(patch), "cached decoding", "not reordered with the beam"),
    (lambda patch, model: take_a_slot_in_use(patch), "cached decoding", "the cache is wrong"),
    (nan_weight, "weights", "training diverged"),
    (dead_head, "head use", "a dead head"),
    (no_mask, "padding unseen", "padding leaks"),
    (cut_graph, "gradients", "the graph is cut"),
    (scaled_in_one_kernel, "score scale", "the two kernels"),
    (zeroed, "weights", "set to zero"),
    (wide_embeddings, "first loss", "initialised too wide"),
]


def named(plant: Plant, check: str, cause: str) -> bool:
    """Whether that check raises the fault and names its cause."""
    subject = fresh(num_decoder_layers=1) if plant is no_positions else fresh()
    with pytest.MonkeyPatch.context() as patch:
        plant(patch, subject.model)
        finding = check_model(subject, [each for each in QUICK if name_of(each) == check])[check]
    return finding.level in (Level.suspicious, Level.broken) and cause in finding.advice


def test_planted_faults_are_named(figure: Figure) -> None:
    for subject in (fresh(), fresh(num_decoder_layers=1)):  # negative controls: without a fault
        assert raised(check_model(subject, QUICK)) == {}
    five = [named(*each) for each in FIVE]
    figure("model_check_planted", f"{sum(five)} of 5", "5 of 5", all(five))
    more = [named(*each) for each in MORE]
    figure("model_check_planted_more", f"{sum(more)} of {len(MORE)}", f"{len(MORE)} of {len(MORE)}", all(more))


@pytest.mark.parametrize("plant", [no_scaling, no_causal_mask, inverted_mask, source_not_read])
def test_faults_of_a_trained_model_are_named(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    check, cause = next((check, cause) for each, check, cause in FIVE + MORE if each is plant)
    subject = golden()
    plant(monkeypatch, subject.model)
    finding = check_model(subject, [each for each in QUICK if name_of(each) == check])[check]
    assert finding.level == Level.broken
    assert cause in finding.advice


def sound(subjects: list[Subject], checks: tuple[Callable[..., object], ...]) -> tuple[int, list[object]]:
    findings = [check_model(subject, checks) for subject in subjects]  # type: ignore[arg-type]
    alarms = [(subject.config.model_dump(), raised(found)) for subject, found in zip(subjects, findings, strict=True)]
    return sum(not found for _, found in alarms), [alarm for alarm in alarms if alarm[1]]


def test_sound_models_raise_nothing(figure: Figure) -> None:
    """The short form."""
    subjects = [golden(), *(fresh(**shape) for shape in random_shapes(4, layers=1))]
    quiet, alarms = sound(subjects, QUICK)
    figure("model_check_sound", f"{quiet} of {len(subjects)} {alarms or ''}".strip(), "all", quiet == len(subjects))
    assert sound([golden()], (overfit,)) == (1, [])


@pytest.mark.slow
def test_many_sound_models_raise_nothing(figure: Figure) -> None:
    subjects = [golden(), *(fresh(**shape) for shape in random_shapes(3 * len(KINDS)))]
    quiet, alarms = sound(subjects, MODEL_CHECKS)
    figure(
        "model_check_sound_full", f"{quiet} of {len(subjects)} {alarms or ''}".strip(), "all", quiet == len(subjects)
    )


@pytest.mark.parametrize("kv_heads", [2, 1])
def test_the_scale_is_seen_behind_norms(kv_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = fresh(qk_norm=True, num_kv_heads=kv_heads)
    with torch.no_grad():
        for norm in (module for module in subject.model.modules() if isinstance(module, torch.nn.RMSNorm)):
            norm.weight.uniform_(0.5, 2.0)
    finding = check_model(subject, [score_scale])["score scale"]
    assert finding.level == Level.ok
    assert "in 6 attentions" in finding.found
    no_scaling(monkeypatch, subject.model)
    finding = check_model(subject, [score_scale])["score scale"]
    assert finding.level == Level.broken
    assert "not scaled by 1 / sqrt(head size)" in finding.advice


def test_tiny_models_are_not_called_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    rnn: dict[str, object] = {"type": "rnn", "d_model": 4, "num_heads": 8, "num_encoder_layers": 1}
    narrow: dict[str, object] = {"d_model": 2, "num_heads": 1, "num_encoder_layers": 1, "num_decoder_layers": 1}
    monkeypatch.setattr(learning, "_STEPS", 2)  # in which nothing is learnt
    checks = (score_scale, order_seen, source_read, overfit)
    findings = check_model(fresh(**rnn), checks) | {"memory": memory(fresh(**rnn), 16, 2, 2)}
    assert list(raised(findings)) == ["overfit"]
    assert findings["overfit"].advice.startswith("model.d_model = 4 is too small to learn by heart")
    for kind in (rnn | {"d_model": 2}, narrow, narrow | {"norm": "post"}):
        assert not is_broken(check_model(fresh(**kind), checks))
    assert raised(check_model(fresh(**narrow, norm="post"), [order_seen, source_read])).keys() == {
        "order seen",
        "source read",
    }
    assert is_broken(check_model(fresh(**narrow | {"d_model": 8}), [overfit]))
    no_causal_mask(monkeypatch, fresh().model)  # a fault at any width
    assert is_broken(check_model(fresh(**narrow), [future_unseen]))
    assert check_model(fresh(d_model=8), [overfit])["overfit"].level == Level.broken


def test_one_of_a_kind_is_singular(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "_STEPS", 1)
    found = check_model(fresh(type="rnn", d_model=8, num_encoder_layers=1), [attention_weights, head_use, overfit])
    assert found["attention weights"].found == "the rows of 1 attention sum to 1"
    assert found["head use"].found == "in 1 head weights follow the query"
    assert "made up of random tokens" in found["overfit"].found
    assert found["overfit"].found.endswith("in 1 step")


def test_a_model_that_cannot_learn_is_broken() -> None:
    subject = fresh()
    subject.model.requires_grad_(False)
    assert overfit(subject).level == Level.broken


def test_the_model_is_left_as_it_was() -> None:
    shape = {"dropout": 0.3, "num_encoder_layers": 1, "num_decoder_layers": 1}
    subject = fresh(**shape)
    before = {name: tensor.clone() for name, tensor in subject.model.state_dict().items()}
    state = torch.random.get_rng_state()
    first = check_model(subject, (*QUICK[1:4], *QUICK[-3:], overfit))
    assert all(torch.equal(before[name], tensor) for name, tensor in subject.model.state_dict().items())
    assert subject.model.training
    assert all(parameter.grad is None for parameter in subject.model.parameters())
    assert torch.equal(state, torch.random.get_rng_state())
    again = check_model(fresh(**shape), QUICK[1:4])
    assert again == {name: first[name] for name in again}


def test_numbers_that_json_has_not_are_null() -> None:
    found = as_records({"a": broken("b", "c", x=math.nan, y=1.0)})
    assert json.loads(json.dumps(found, allow_nan=False))[0]["numbers"] == {"x": None, "y": 1.0}


def test_odd_shapes_are_suspicious() -> None:
    for shape in ({"num_heads": 16}, {"d_ff": 16}, {"d_ff": 1024}):
        assert list(raised(check_model(fresh(**shape), QUICK[:1]))) == ["shape"]


@pytest.mark.parametrize("shape", [{"num_heads": 4, "num_decoder_layers": 1}, {"activation": "swiglu"}], ids=str)
def test_memory_is_that_of_real_tensors(shape: dict[str, object], figure: Figure) -> None:
    subject = fresh(**shape)
    found, model, config = measure(subject), subject.single_copy(), subject.config
    assert found.source_token == found.target_token == 2 * config.num_decoder_layers * config.d_model * 4
    figure(
        "model_check_cache_bytes",
        f"{found.decoding(64, 1, 1):,.0f}, of real tensors {state_bytes(model, 64, 64):,}",
        "equal but for 8 bytes",
        abs(found.decoding(64, 1, 1) - state_bytes(model, 64, 64)) <= 8,
    )
    predicted, real = found.training(48, 1) - 4 * found.weights, saved_bytes(model, 48, 48)
    figure(
        "model_check_saved_bytes",
        f"{predicted / real:.4f} of what is saved",
        "0.99 to 1.01",
        0.99 < predicted / real < 1.01,
    )


@pytest.mark.parametrize(("cell", "tensors"), [("lstm", 2), ("gru", 1)])
def test_memory_of_a_recurrent_model(cell: str, tensors: int) -> None:
    subject = fresh(type="rnn", cell=cell, d_model=8, num_encoder_layers=1)
    found = measure(subject)
    assert found.prefix == (2 * tensors + 1) * 8 * 4  # layers and what is fed
    assert found.target_token == 0
    assert found.decoding(20, 1, 1) == state_bytes(subject.single_copy(), 20, 1)
    finding = memory(subject, 20, 3, 5)
    assert finding.numbers["decoding"] == 3 * (20 * found.source_token + 5 * found.prefix)
    assert "flash" not in finding.found


def test_flash_attention_spares_what_nothing_is_added_to() -> None:
    plain, added = measure(fresh(dropout=0.0)), measure(fresh(dropout=0.0, positions="shaw"))
    assert plain.flash_square == 0.0
    weights = 2 * 2 * 4  # of an attention in either layer: heads x fp32
    assert added.flash_square is not None
    assert added.saved_square - added.flash_square == weights
    assert added.flash_square >= 2 * weights  # of the encoder and of the decoder


# What a model writes


def text(hypotheses: list[str], sources: list[str] | None = None, references: list[str] | None = None) -> Text:
    """Words are pieces."""
    sources = sources or [f"source {n} " + "a b c d e f"[: 2 * n] for n in range(len(hypotheses))]
    ids = [
        [[hash(word) for word in line.split()] for line in lines] for lines in (sources, hypotheses, references or [])
    ]
    return Text(sources, references or [], hypotheses, *ids)


def test_what_a_model_writes(figure: Figure) -> None:
    usual = [f"eins zwei drei {n} vier fünf"[: 15 + n] for n in range(6)]
    faults = {
        "repetition": text([*usual[:5], "das ist so gut und das ist so gut"]),
        "length": text([line + " und so weiter und noch mehr davon" for line in usual], references=usual),
        "sameness": text([usual[0]] * 6),
        "copies": text(usual, sources=usual),
    }
    found = [check(faults[check.__name__]) for check in outputs.TEXT_CHECKS]
    levels = [finding.level for finding in found]
    assert [check(text(usual, references=usual)).level for check in outputs.TEXT_CHECKS] == [Level.ok] * 4
    assert outputs.repetition(text(usual, references=faults["repetition"].hypotheses)).level == Level.ok
    short = outputs.length(text([line[:5] for line in usual], references=usual))
    assert all("too little training" in finding.advice for finding in (found[1], short))
    asked = [Level.suspicious, Level.suspicious, Level.broken, Level.suspicious]
    figure("model_check_outputs", f"{sum(map(Level.__eq__, levels, asked))} of 4", "4 of 4", levels == asked)


def test_the_tokenizer_must_know_the_text() -> None:
    src, tgt = tiny.sentences(30)
    tokens = tiny.tokenizer()
    assert outputs.tokenizer(tokens, src, tgt).level == Level.ok
    finding = outputs.tokenizer(tokens, ["Москва Киев"] * 30, [])
    assert finding.level == Level.broken
    assert "right language" in finding.advice


def test_a_trained_model_translates_soundly() -> None:
    lines = (GOLDEN / "source.txt").read_text().splitlines()
    findings = check_text(Bundle.load(GOLDEN / "bundle"), lines, [])
    assert len(findings) == 5
    assert list(raised(findings)) == ["repetition"]  # it was trained for seconds, and does say "gros gros gros"


# The command


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = _run(["model", "check", *map(str, arguments)], False)
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_the_command_on_a_recipe(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    made = tiny.write(tmp_path)
    code, out, err = run(made.toml, "--set", "model.num_heads=1")
    assert code == 0, out
    assert {line.split()[0] for line in out.splitlines()} <= {"ok", "skipped"}
    assert "checking: overfit" in err
    assert "parameters" in err.splitlines()[0]
    assert err.index("checking: memory") < err.index("checking: weights")
    assert out.splitlines()[0].split()[1] == "memory:"


def test_on_a_terminal_one_line_changes(
    run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    code, out, err = run(tiny.write(tmp_path).toml, "--set", "model.num_heads=1")
    assert code == 0 and "\x1b" not in out
    assert "checking: overfit" in err and "\r\x1b[2K" in err and err.count("\n") < len(out.splitlines())


def test_the_command_on_a_model(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    made = tiny.write(tmp_path)
    bundle = tiny.random_bundle()
    with torch.no_grad():
        bundle.model.decoder[0].cross_attention.out.weight.zero_()
        bundle.model.decoder[0].cross_attention.out.bias.zero_()
    broken = tiny.save(bundle, tmp_path / "broken")
    code, out, err = run("-m", broken, "--src", made.src, "--tgt", made.tgt, "--json", "--quiet")
    found = json.loads(out)
    levels = {finding["check"]: finding["level"] for finding in found["findings"]}
    assert (code, found["broken"], err) == (5, True, "")
    assert levels["source read"] == levels["weights"] == "broken"
    assert levels["tokenizer"] == "ok"
    assert {"repetition", "length", "sameness", "copies", "memory"} <= levels.keys()


def test_a_length_without_positions_is_refused(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    shape = {**tiny.SHAPE, "positions": "learned", "max_positions": 20}
    made = tiny.write(tmp_path, model=shape, data={"max_length": 20})
    code, out, err = run(made.toml, "--length", 21)
    assert (code, out) == (2, "")
    assert "--length 21" in err
    assert "model.max_positions = 20" in err
    small = fresh(positions="learned", max_positions=16)
    assert usual_length(small.model, None) == usual_length(small.model, 16) == 16
    assert usual_length(fresh().model, None) == 128
    assert memory(small, 16, 1, 1).level == Level.skipped
    assert raised(check_model(small, QUICK)) == {}


def test_a_model_larger_than_the_machine_is_refused(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tiny.write(tmp_path)
    parameters = Subject.from_config(made.config).model.num_parameters()
    assert Subject.parameters_of(made.config) == parameters
    monkeypatch.setattr("nmt.diagnosis.memory._machine_bytes", lambda: 28 * parameters)
    assert bytes_to_check(parameters) == 28 * parameters
    monkeypatch.setattr("nmt.diagnosis.memory._machine_bytes", lambda: 28 * parameters - 1)
    monkeypatch.setattr(Subject, "from_config", lambda config: pytest.fail("it was built"))
    for arguments in ([made.toml], ["-m", tiny.save(tiny.random_bundle(), tmp_path / "bundle")]):
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert f"{28 * parameters:,} bytes" in err
        assert f"has {28 * parameters - 1:,}" in err


@pytest.mark.parametrize("arguments", [[], ["x.toml", "-m", "y"], ["x.toml", "--src", "y"], ["-m", "y", "--tgt", "z"]])
def test_what_does_not_go_together(arguments: list[str], run: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert "Give either" in err or "goes with" in err
    assert ("--src is text" in err) == (arguments[1:] == ["--src", "y"])
