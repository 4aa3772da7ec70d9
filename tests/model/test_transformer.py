"""The model against PyTorch's own Transformer layers; causality, padding, initialisation."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nmt.config import ModelConfig
from nmt.model.positions import SinusoidalPositions, sinusoidal
from nmt.model.transformer import FeedForward, Transformer
from oracle import OF_2017, drop_causal_mask

Make = Callable[..., Transformer]
Source = Callable[[np.random.Generator, int], tuple[Tensor, Tensor]]


def random_target(rng: np.random.Generator, batch: int, most: int = 9) -> Tensor:
    return torch.from_numpy(rng.integers(0, 11, (batch, int(rng.integers(1, most)))))


def written_out_positions(length: int, d_model: int) -> Tensor:
    angle = [[pos / 10000 ** ((i - i % 2) / d_model) for i in range(d_model)] for pos in range(length)]
    table = [[math.cos(a) if i % 2 else math.sin(a) for i, a in enumerate(row)] for row in angle]
    return torch.tensor(table, dtype=torch.double)


class TorchTransformer(nn.Module):
    """The oracle: torch.nn's encoder and decoder between embeddings and an output layer, with our weights."""

    def __init__(self, ours: Transformer, norm_first: bool) -> None:
        super().__init__()
        first = ours.encoder[0]
        d_model, up = ours.output.in_features, first.feed_forward.up
        shape = (d_model, first.self_attention.num_heads, up.out_features, 0.0, first.feed_forward.activation)
        layer = {"batch_first": True, "norm_first": norm_first}
        norms = [nn.LayerNorm(d_model) if isinstance(ours.encoder_norm, nn.LayerNorm) else None for _ in range(2)]
        self.src_embedding = nn.Embedding(ours.src_embedding.num_embeddings, d_model)
        self.tgt_embedding = nn.Embedding(ours.tgt_embedding.num_embeddings, d_model)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(*shape, **layer), len(ours.encoder), norms[0], enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(*shape, **layer), len(ours.decoder), norms[1])
        self.output = nn.Linear(d_model, ours.output.out_features, bias=False)
        self.double().load_state_dict(as_torch(dict(ours.named_parameters())))

    def forward(self, src: Tensor, tgt: Tensor, src_padded: Tensor, tgt_padded: Tensor | None) -> Tensor:
        unseen = torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool).triu(1)
        memory = self.encoder(self.embed(self.src_embedding, src), src_key_padding_mask=src_padded)
        decoded = self.decoder(
            self.embed(self.tgt_embedding, tgt),
            memory,
            tgt_mask=unseen,
            tgt_key_padding_mask=tgt_padded,
            memory_key_padding_mask=src_padded,
        )
        return self.output(decoded)

    @staticmethod
    def embed(embedding: nn.Embedding, ids: Tensor) -> Tensor:
        d_model = embedding.embedding_dim
        return embedding(ids) * d_model**0.5 + written_out_positions(ids.shape[1], d_model)


def as_torch(ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our parameters (or their gradients) under torch.nn's names, which fuse q with k and v in cross-attention too."""
    renames = {
        "self_attention.qkv.": "self_attn.in_proj_",
        "self_attention.out.": "self_attn.out_proj.",
        "cross_attention.out.": "multihead_attn.out_proj.",
        "self_attention_norm.": "norm1.",
        "cross_attention_norm.": "norm2.",
        "feed_forward.up.": "linear1.",
        "feed_forward.down.": "linear2.",
        "encoder_norm.": "encoder.norm.",
        "decoder_norm.": "decoder.norm.",
    }
    theirs = {}
    for name, tensor in ours.items():
        if ".cross_attention.kv." in name:
            continue
        if ".cross_attention.q." in name:
            tensor = torch.cat([tensor, ours[name.replace(".q.", ".kv.")]])
            name = name.replace("cross_attention.q.", "multihead_attn.in_proj_")
        name = name.replace("feed_forward_norm", "norm2" if name.startswith("encoder") else "norm3")
        for old, new in renames.items():
            name = name.replace(old, new)
        if name.startswith(("encoder.", "decoder.")) and ".norm." not in name:
            name = name.replace(".", ".layers.", 1)
        theirs[name] = tensor
    return theirs


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def torch_difference(
    make: Make, source: Source, shapes: int, flip_norm: bool = False, drop_mask: bool = False
) -> float:
    """The largest difference of a logit or a parameter's gradient from torch.nn's, over random shapes with padding."""
    rng, worst = np.random.default_rng(1), 0.0
    for shape in range(shapes):
        norm, activation = ("pre", "post")[shape % 2], ("relu", "gelu")[shape // 2 % 2]
        ours = make(rng, norm=norm, activation=activation, tied_embeddings="none", **OF_2017)
        theirs = TorchTransformer(ours, norm_first=(norm == "pre") != flip_norm)
        batch = int(rng.integers(1, 5))
        (src, keep), tgt = source(rng, batch), random_target(rng, batch)
        tgt_keep = torch.arange(tgt.shape[1]) < torch.from_numpy(rng.integers(1, tgt.shape[1] + 1, (batch, 1)))
        our_logits = ours(src, tgt, None if drop_mask else keep)[tgt_keep]
        their_logits = theirs(src, tgt, ~keep, ~tgt_keep)[tgt_keep]
        incoming = torch.from_numpy(rng.normal(size=our_logits.shape))
        our_gradients = as_torch(gradients(ours, (our_logits * incoming).sum()))
        their_gradients = gradients(theirs, (their_logits * incoming).sum())
        assert our_gradients.keys() == their_gradients.keys()
        pairs = [(our_logits, their_logits), *((our_gradients[name], g) for name, g in their_gradients.items())]
        worst = max(worst, *(float((mine - other).detach().abs().max()) for mine, other in pairs))
    return worst


def test_equals_torch_layers(figure: Callable[..., None], random_model: Make, random_source: Source) -> None:
    worst = torch_difference(random_model, random_source, 100)
    figure(
        "nn_transformer_max_difference",
        f"{worst:.0e} over 100 shapes",
        "fp64 <= 1e-10, logits and all gradients",
        worst <= 1e-10,
    )


@pytest.mark.parametrize("broken", ["flip_norm", "drop_mask"])
def test_the_torch_comparison_sees(
    broken: str, figure: Callable[..., None], random_model: Make, random_source: Source
) -> None:
    difference = torch_difference(random_model, random_source, 4, **{broken: True})
    figure(f"nn_transformer_{broken}_difference", f"{difference:.1f}", "> 1e-2", difference > 1e-2)


def leaks(make: Make, source: Source, cases: int) -> tuple[int, int]:
    """Changing target token t: cases where a logit before t moved, and cases where none from t on did."""
    rng, early, deaf = np.random.default_rng(2), 0, 0
    for _ in range(cases):
        model = make(rng)
        (src, keep), tgt = source(rng, 2), random_target(rng, 2, most=12)
        changed, t = tgt.clone(), int(rng.integers(tgt.shape[1]))
        changed[:, t] = (tgt[:, t] + 1) % 11
        with torch.no_grad():
            moved = (model(src, tgt, keep) - model(src, changed, keep)).abs().amax((0, 2))
        early += bool((moved[:t] > 1e-12).any())
        deaf += not bool((moved[t:] > 1e-6).all())
    return early, deaf


@pytest.mark.parametrize(("kind", "cases"), [("transformer", 100), ("rnn", 10)])
def test_no_logit_sees_later_targets(
    kind: str, cases: int, figure: Callable[..., None], random_model: Make, random_source: Source
) -> None:
    early, deaf = leaks(partial(random_model, type=kind), random_source, cases)
    shown = f"{early} of {cases}, {deaf} deaf to their own past"
    figure(f"{kind}_causality_leaks", shown, f"0 of {cases}, 0", early == deaf == 0)


def test_the_causality_check_sees_a_decoder_that_looks_ahead(
    figure: Callable[..., None], random_model: Make, random_source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop_causal_mask(monkeypatch)
    early, _ = leaks(random_model, random_source, 20)
    figure("causality_control_leaks", f"{early} of 20", ">= 10 without the mask", early >= 10)


def padding_changes(make: Make, source: Source, cases: int, masked: bool = True) -> int:
    """Cases where other ids, or 1e4 in their embeddings, on the padded positions move a logit."""
    rng, changes = np.random.default_rng(3), 0
    for _ in range(cases):
        model = make(rng, tied_embeddings="none")
        (src, keep), tgt = source(rng, 4), random_target(rng, 4)
        poison = int(src.max())
        src[(src == poison) & keep] = 0  # the poisoned embedding is nowhere real
        seen = keep if masked else None
        with torch.no_grad():
            before = model(src.masked_fill(~keep, 0), tgt, seen)
            other_ids = model(src.masked_fill(~keep, poison), tgt, seen)
            model.src_embedding.weight[poison] = 1e4
            poisoned = model(src.masked_fill(~keep, poison), tgt, seen)
        changes += max(float((after - before).abs().max()) for after in (other_ids, poisoned)) > 1e-12
    return changes


@pytest.mark.parametrize(("kind", "cases"), [("transformer", 100), ("rnn", 10)])
def test_padding_changes_nothing(
    kind: str, cases: int, figure: Callable[..., None], random_model: Make, random_source: Source
) -> None:
    changes = padding_changes(partial(random_model, type=kind), random_source, cases)
    figure(f"{kind}_padding_changes", f"{changes} of {cases}", f"0 of {cases}, poison 1e4", changes == 0)


@pytest.mark.parametrize("kind", ["transformer", "rnn"])
def test_the_padding_check_sees_a_lost_mask(
    kind: str, figure: Callable[..., None], random_model: Make, random_source: Source
) -> None:
    changes = padding_changes(partial(random_model, type=kind), random_source, 20, masked=False)
    figure(f"{kind}_padding_control_changes", f"{changes} of 20", ">= 15 without the mask", changes >= 15)


def test_positions_equal_the_formula_at_any_length() -> None:
    for start, length, d_model in [(0, 1, 2), (0, 256, 8), (250, 20, 6), (1000, 3, 512)]:
        expected = written_out_positions(start + length, d_model)[start:]
        torch.testing.assert_close(sinusoidal(start + length, d_model)[start:], expected, rtol=0, atol=1e-12)
        module = SinusoidalPositions(d_model).double()
        torch.testing.assert_close(module(start, length, like=expected), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_positions_do_not_depend_on_what_came_before(dtype: torch.dtype) -> None:
    like = torch.zeros(1, dtype=dtype)
    module = SinusoidalPositions(64).to(dtype)
    before = module(0, 200, like).clone()
    module(0, 5000, like)
    assert torch.equal(module(0, 200, like), before)


def test_training_goes_on_after_positions_grew_in_inference_mode(random_model: Make) -> None:
    model = random_model(np.random.default_rng(5), **OF_2017)
    long = torch.arange(600)[None] % 11
    with torch.inference_mode():
        grown = model(long, long)
    logits = model(long, long)
    assert torch.equal(logits, grown)
    assert logits.isfinite().all()
    logits.sum().backward()


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "swiglu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("tied", ["none", "decoder", "all"])
def test_every_parameter_receives_gradient(
    random_model: Make, random_source: Source, norm: str, activation: str, tied: str
) -> None:
    rng = np.random.default_rng(6)
    model = random_model(rng, norm=norm, activation=activation, tied_embeddings=tied)
    src, keep = random_source(rng, 4)
    logits = model(src, random_target(rng, 4), keep)
    received = gradients(model, (logits * torch.randn_like(logits)).sum())
    assert not [name for name, gradient in received.items() if not gradient.abs().max() > 0]
    assert all(gradient.isfinite().all() for gradient in received.values())


@pytest.mark.parametrize(
    ("activation", "formula"),
    [
        ("relu", lambda up, i, _: max(0.0, up[i])),
        ("gelu", lambda up, i, _: up[i] * (1 + math.erf(up[i] / math.sqrt(2))) / 2),
        ("silu", lambda up, i, _: up[i] / (1 + math.exp(-up[i]))),
        ("swiglu", lambda up, i, width: up[i] / (1 + math.exp(-up[i])) * up[width + i]),
    ],
)
def test_feed_forward_equals_the_formula(activation: str, formula: Callable[[list[float], int, int], float]) -> None:
    torch.manual_seed(1)
    layer = FeedForward(
        ModelConfig(d_model=4, num_heads=1, d_ff=7, activation=activation, activation_dropout=0)
    ).double()
    x = torch.randn(3, 5, 4, dtype=torch.double)
    up = (x @ layer.up.weight.T + layer.up.bias).view(15, -1).tolist()
    hidden = torch.tensor([[formula(row, i, 7) for i in range(7)] for row in up], dtype=torch.double).view(3, 5, 7)
    torch.testing.assert_close(layer(x), hidden @ layer.down.weight.T + layer.down.bias, rtol=0, atol=1e-12)


def is_glorot(weight: Tensor) -> bool:
    """Uniform on ±sqrt(6 / (inputs + outputs)): nothing beyond, and the spread of it."""
    bound = math.sqrt(6 / sum(weight.shape))
    return (
        bool(0.99 * bound < weight.abs().max() <= bound)
        and abs(float(weight.detach().std()) * math.sqrt(3) / bound - 1) < 0.03
    )


def test_initialisation() -> None:
    torch.manual_seed(1)
    config = ModelConfig(num_encoder_layers=2, num_decoder_layers=2, d_model=64, num_heads=4, d_ff=96)
    model = Transformer(config, 500, 500)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            assert (parameter == float(name.endswith("weight"))).all()
        elif name.endswith("bias"):
            assert (parameter == 0).all()
        elif "embedding" in name or name.startswith("output"):
            assert abs(float(parameter.detach().std()) * 8 - 1) < 0.03
        else:
            blocks = 3 if ".qkv." in name else 2 if ".kv." in name else 1
            assert all(is_glorot(block) for block in parameter.chunk(blocks)), name
    fused = nn.init.xavier_uniform_(torch.empty(192, 64))
    assert not any(is_glorot(block) for block in fused.chunk(3))  # what the check is there to see


@pytest.mark.parametrize(("tied", "tables"), [("none", 3), ("decoder", 2), ("all", 1)])
def test_tied_embeddings_share_storage_and_count_once(tied: str, tables: int) -> None:
    model = Transformer(ModelConfig(d_model=8, num_heads=2, d_ff=4, tied_embeddings=tied), 50, 50)
    weights = [model.src_embedding.weight, model.tgt_embedding.weight, model.output.weight]
    assert len({weight.data_ptr() for weight in weights}) == tables
    # a layer: q, k, v, out; up, down; norms
    encoder_layer, decoder_layer = 4 * 72 + 36 + 40 + 2 * 16, 8 * 72 + 36 + 40 + 3 * 16
    assert model.num_parameters() == 6 * (encoder_layer + decoder_layer) + 2 * 16 + tables * 400
    model(torch.ones(1, 2).long(), torch.ones(1, 2).long()).sum().backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    assert torch.equal(model.tgt_embedding.weight, model.output.weight) == (tied != "none")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_under_autocast_to_bf16_what_layers_add_to_is_bf16(norm: str) -> None:
    config = ModelConfig(d_model=16, num_heads=2, d_ff=32, num_encoder_layers=1, num_decoder_layers=1,
                         norm=norm, qk_norm=True, dropout=0.1)  # fmt: skip
    torch.manual_seed(1)
    model = Transformer(config, 11, 11).train()
    seen = []
    for layer in (*model.encoder, *model.decoder):
        layer.register_forward_hook(lambda module, inputs, output: seen.append((inputs[0].dtype, output.dtype)))
    src, tgt = torch.randint(11, (3, 5)), torch.randint(11, (3, 6))
    for dtype, inside in ((torch.bfloat16, torch.bfloat16), (None, torch.float32)):
        seen.clear()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is not None):
            states = model.states(src, tgt, None)
        states.float().sum().backward()
        assert states.dtype == inside
        assert {each for pair in seen for each in pair} == {inside}
        assert all(
            parameter.grad.dtype == torch.float32
            for name, parameter in model.named_parameters()
            if parameter.grad is not None
        )
