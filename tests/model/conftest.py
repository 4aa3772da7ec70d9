"""Small random models and sources, in float64."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from nmt.config import ModelConfig
from nmt.model.build import build_model
from nmt.model.seq2seq import Seq2Seq
from oracle import kind_of_attention, kind_of_rnn

VOCAB = 11
NO_DROPOUT = dict.fromkeys(("dropout", "embedding_dropout", "attention_dropout", "activation_dropout"), 0.0)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small are slower with more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def random_model() -> Callable[..., Seq2Seq]:
    """`random_model(rng, **config)`: a model whose shape and kind of attention are drawn where `config` is silent.

    Biases and norms are drawn too: a fresh model's zeros and ones would hide a bias or norm that is left out.
    """

    def make(rng: np.random.Generator, **config: object) -> Seq2Seq:
        drawn: dict[str, object] = {
            "num_encoder_layers": int(rng.integers(1, 3)),
            "num_decoder_layers": int(rng.integers(1, 3)),
            "d_model": int(rng.choice([8, 16, 24])),
            "num_heads": int(rng.choice([1, 2, 4])),
            "d_ff": int(rng.integers(5, 40)),
            "norm": str(rng.choice(["pre", "post"])),
            "activation": str(rng.choice(["relu", "gelu", "swiglu"])),
            "tied_embeddings": str(rng.choice(["none", "decoder", "all"])),
        }
        num_heads = int(str(config.get("num_heads", drawn["num_heads"])))
        drawn |= kind_of_rnn(rng) if config.get("type") == "rnn" else kind_of_attention(rng, num_heads)
        torch.manual_seed(int(rng.integers(2**31)))
        model = build_model(ModelConfig(**NO_DROPOUT | drawn | config), VOCAB, VOCAB).double()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim == 1:
                    parameter.normal_(1.0 if "norm" in name and name.endswith("weight") else 0.0, 0.3)
        return model

    return make


@pytest.fixture
def random_source() -> Callable[[np.random.Generator, int], tuple[Tensor, Tensor]]:
    """`random_source(rng, batch)`: ids (B, S) and which of them are real, padded on the right."""

    def make(rng: np.random.Generator, batch: int) -> tuple[Tensor, Tensor]:
        lengths = torch.from_numpy(rng.integers(1, 9, batch))
        src = torch.from_numpy(rng.integers(0, VOCAB, (batch, int(lengths.max()))))
        return src, torch.arange(src.shape[1]) < lengths[:, None]

    return make
