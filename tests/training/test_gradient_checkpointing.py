"""Gradient checkpointing: layers computed twice give the same numbers, to the bit, in less memory."""

import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import tiny
from nmt.bundle import list_checkpoints, weights_of
from nmt.model import transformer
from nmt.training import run
from nmt.training.checkpoint import load_state
from nmt.training.distributed import Ranks
from nmt.training.interrupt import StopRequest
from nmt.training.progress import TrainingLog
from nmt.training.trainer import Trainer

RATES = {"dropout": 0.3, "embedding_dropout": 0.2, "attention_dropout": 0.25, "activation_dropout": 0.15}
DEEP = {**tiny.SHAPE, **RATES, "num_encoder_layers": 2, "num_decoder_layers": 2}
UPDATES = 5


def new_trainer(folder: Path, corpus: tiny.Tiny, **training: Any) -> Trainer:
    folder.mkdir(exist_ok=True)
    config = corpus.config.replace(training=training)
    log, device = TrainingLog(quiet=True), torch.device("cpu")
    opened = run._open(config, folder, device, corpus.cache, 1, log)
    return run._trainer(opened, folder, device, log, StopRequest(), Ranks())


def trained(trainer: Trainer, double: bool) -> dict[str, Tensor]:
    """Losses, gradients and weights of a few updates, by name."""
    seen: dict[str, Tensor] = {}
    if double:
        trainer.model.double()
    step, noted = trainer._step, trainer.model.named_parameters

    def watched(*arguments: Any) -> Any:
        gradients = {
            f"{trainer.state.update} gradient {name}": p.grad.clone() for name, p in noted() if p.grad is not None
        }
        seen.update(gradients, **{f"{trainer.state.update} losses": torch.stack(list(trainer._losses.values()))})
        return step(*arguments)

    trainer._step = watched  # type: ignore[method-assign]
    with tiny.one_thread():
        for _ in range(UPDATES):
            trainer.one_update()
    return seen | weights_of(trainer.model)


@pytest.mark.parametrize("double", [False, True], ids=["fp32", "fp64"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("forgetful", [False, True])  # True is the control: the generators are not put back
def test_on_equals_off(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    double: bool,
    norm: str,
    forgetful: bool,
    figure: Callable[..., None],
) -> None:
    corpus = tiny.write(tmp_path / "corpus", model={**DEEP, "norm": norm}, training={"accumulation": 2})
    plain = trained(new_trainer(tmp_path / "off", corpus), double)
    if forgetful:
        again = partial(transformer.checkpoint)
        monkeypatch.setattr(
            transformer, "checkpoint", lambda *args, **options: again(*args, **{**options, "preserve_rng_state": False})
        )
    twice = trained(new_trainer(tmp_path / "on", corpus, gradient_checkpointing=True), double)
    assert plain.keys() == twice.keys() and len(plain) > 5 * 40
    different = [name for name in plain if not torch.equal(plain[name], twice[name])]
    if forgetful:
        assert len(different) > len(plain) / 2
        return
    name = f"checkpointing_differences_{norm}_{'fp64' if double else 'fp32'}"
    figure(name, f"{len(different)} of {len(plain)} tensors of {UPDATES} updates", "0", not different)


class Peak(TorchDispatchMode):
    """The most bytes that tensors made within the block held at one time, the backward pass's own included."""

    def __init__(self) -> None:
        super().__init__()
        self.most, self._live, self._sizes = 0, 0, dict[int, int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._note(tensor.untyped_storage())
        return result

    def _note(self, storage: torch.UntypedStorage) -> None:
        if id(storage) in self._sizes:
            return
        self._sizes[id(storage)] = storage.nbytes()
        weakref.finalize(storage, self._forget, id(storage))
        self._live += storage.nbytes()
        self.most = max(self.most, self._live)

    def _forget(self, key: int) -> None:
        self._live -= self._sizes.pop(key)


def peak_bytes(trainer: Trainer) -> int:
    """Of the forward and backward pass of a batch, without the gradients of the weights."""
    pairs = trainer.stream.draw()
    for _ in range(2):  # the first makes the gradients, which are then added to
        with Peak() as peak:
            trainer._gradients({0: pairs}, trainer.stream.num_tokens(pairs))
    return peak.most


@pytest.mark.slow
def test_memory_is_saved(tmp_path: Path, figure: Callable[..., None]) -> None:
    shape = {**DEEP, "num_encoder_layers": 6, "num_decoder_layers": 6, "d_model": 64, "d_ff": 256}
    corpus = tiny.write(tmp_path / "corpus", pairs=300, model=shape, training={"tokens_per_batch": 1000})
    with tiny.one_thread():
        peaks = [peak_bytes(new_trainer(tmp_path / str(on), corpus, gradient_checkpointing=on)) for on in (False, True)]
    ratio = peaks[1] / peaks[0]
    said = f"{ratio:.2f} ({peaks[1] / 1e6:.1f} of {peaks[0] / 1e6:.1f} MB)"
    figure("checkpointing_peak_memory", said, "<= 0.4 of the peak without", ratio <= 0.4)


def test_it_may_change_on_resume(tmp_path: Path) -> None:
    corpus = tiny.write(tmp_path / "corpus", training={"max_updates": 4})
    ends = []
    for name, on in (("whole", False), ("changed", True)):
        folder = tmp_path / name
        for updates, twice in ((2, False), (4, on)):
            config = corpus.config.replace(training={"max_updates": updates, "gradient_checkpointing": twice})
            run.train(config, folder, device="cpu", cache=corpus.cache, quiet=True)
        ends.append((list_checkpoints(folder)[-1] / "model.safetensors").read_bytes())
        assert load_state(list_checkpoints(folder)[-1]).update == 4
    assert ends[0] == ends[1]
