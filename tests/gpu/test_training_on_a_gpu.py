"""Training on a GPU: bf16, flash, the same bits again, memory that runs out, checkpoints, what is read when."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from attention_kernels import flash_by_attention, kernels_of_updates, unpadded_batch
from nmt.bundle import Bundle, list_checkpoints, weights_of
from nmt.training import run
from nmt.training.loss import batch_loss
from nmt.training.trainer import Trainer

NewTrainer = Callable[..., Trainer]


def fit(corpus: tiny.Tiny, folder: Path, **training: Any) -> Path:
    return run.train(corpus.config.replace(training=training), folder, device="cuda", cache=corpus.cache, quiet=True)


def losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "update"]


def test_torch_is_set_up(cuda: torch.device) -> None:
    assert torch.get_float32_matmul_precision() == "high"
    assert torch.are_deterministic_algorithms_enabled() and not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.flash_sdp_enabled()


@pytest.mark.parametrize("compiled", [False, True])
def test_training_in_bf16(corpus: tiny.Tiny, tmp_path: Path, compiled: bool, figure: Callable[..., None]) -> None:
    fit(corpus, tmp_path / "run", max_updates=60, compile=compiled)
    seen = losses(tmp_path / "run")
    assert 'precision = "bf16"' in (tmp_path / "run" / "config.toml").read_text()
    said = f"{seen[0]:.2f} -> {seen[-1]:.2f}"
    figure(f"gpu_bf16_loss_{'compiled' if compiled else 'eager'}", said, "0.5 nats less", seen[-1] < seen[0] - 0.5)


def test_compiled_is_near_eager(trainer: NewTrainer, figure: Callable[..., None]) -> None:
    """Without dropout, in fp32 (TF32 in the products): the gradient of one batch."""
    gradients = []
    for compiled in (False, True):
        work = trainer(str(compiled), compile=compiled, precision="fp32")
        for module in work.model.modules():
            if hasattr(module, "rate"):
                module.rate = 0.0
        pairs = work.stream.draw()
        work._gradients({0: pairs}, work.stream.num_tokens(pairs))
        gradients.append(torch.cat([p.grad.flatten() for p in work.model.parameters() if p.grad is not None]))
    off = float((gradients[0] - gradients[1]).norm() / gradients[0].norm())
    figure("gpu_compiled_difference", f"{off:.1e}", "<= 5e-3", off <= 5e-3)


def test_flash_runs_in_all_three_attentions(trainer: NewTrainer, figure: Callable[..., None]) -> None:
    work = trainer("run", compile=False, precision="bf16")
    flash = flash_by_attention(work, unpadded_batch(work))
    assert set(flash) == {"encoder", "decoder", "cross"}
    figure("gpu_flash_attentions", f"{sum(flash.values())} of {len(flash)}", "3 of 3", all(flash.values()))
    assert "flash" in kernels_of_updates(work) and "cudnn" not in kernels_of_updates(work)


@pytest.mark.parametrize("options", [{"compile": False}, {"compile": True, "gradient_checkpointing": True}])
def test_the_same_bits_again_and_after_a_resume(
    corpus: tiny.Tiny, tmp_path: Path, options: dict[str, bool], figure: Callable[..., None]
) -> None:
    for name, ends in (("first", (8,)), ("again", (8,)), ("resumed", (3, 8))):
        for end in ends:
            fit(corpus, tmp_path / name, max_updates=end, **options)
    files = ("model.safetensors", "optimizer.safetensors")
    last = {name: list_checkpoints(tmp_path / name)[-1] for name in ("first", "again", "resumed")}
    differing = sum(
        (last[name] / file).read_bytes() != (last["first"] / file).read_bytes()
        for name in ("again", "resumed")
        for file in files
    )
    figure(f"gpu_bit_differences_{'_'.join(options)}", differing, "0: repeated, and resumed", differing == 0)


def test_checkpointing_changes_no_bit(trainer: NewTrainer, figure: Callable[..., None]) -> None:
    weights = []
    for on in (False, True):
        work = trainer(str(on), gradient_checkpointing=on, compile=False)
        for _ in range(4):
            work.one_update()
        weights.append(weights_of(work.model))
    differing = sum(not torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    figure("gpu_checkpointing_differences", differing, "0", differing == 0)


def test_it_recovers_from_lack_of_memory(trainer: NewTrainer, cuda: torch.device, figure: Callable[..., None]) -> None:
    work = trainer("run", compile=False, tokens_per_batch=30_000)
    torch.cuda.reset_peak_memory_stats()
    work.try_widest_batches()
    peak, total = torch.cuda.max_memory_allocated(), torch.cuda.get_device_properties(cuda).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.6 * peak / total)
    try:
        for _ in range(3):
            work.one_update()
        work._look()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    figure("gpu_out_of_memory_parts", work.state.parts, "> 1, and three updates done", work.state.parts > 1)


def test_a_checkpoint_is_the_same_on_both_devices(corpus: tiny.Tiny, tmp_path: Path) -> None:
    fit(corpus, tmp_path / "run", compile=False)
    on_cpu, on_gpu = (weights_of(Bundle.load(tmp_path / "run", device).model) for device in ("cpu", "cuda"))
    assert all(torch.equal(tensor, on_gpu[name]) for name, tensor in on_cpu.items())


def test_nothing_is_waited_for_between_log_lines(trainer: NewTrainer, figure: Callable[..., None]) -> None:
    """By torch's own count of synchronising operations."""
    work = trainer("run", compile=False, log_every=1000)
    work.try_widest_batches()
    for _ in range(2):
        work.one_update()
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            for _ in range(4):
                rates = work.one_update()
                work._agree()
                work._record_update(rates)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    places = sorted({f"{w.filename}:{w.lineno}" for w in caught if "synchroniz" in str(w.message)})
    figure("gpu_host_syncs", f"{len(places)} places {places or ''}".strip(), "0 places", not places)


def test_nan_never_reaches_the_weights(trainer: NewTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    work = trainer("run", compile=False, log_every=1000)
    for _ in range(2):
        work.one_update()
    before = weights_of(work.model, copy=True)
    monkeypatch.setattr("nmt.training.trainer.batch_loss", lambda *args: batch_loss(*args) * float("nan"))
    work.one_update()
    monkeypatch.setattr("nmt.training.trainer.batch_loss", batch_loss)
    with pytest.raises(Exception, match="The loss of update 3 is not finite"):
        work.one_update()
    after = weights_of(work.model)
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_auto_batch_size(corpus: tiny.Tiny, tmp_path: Path) -> None:
    fit(corpus, tmp_path / "run", tokens_per_batch="auto", max_updates=1, compile=False)
    assert "tokens_per_batch = 65536" in (tmp_path / "run" / "config.toml").read_text()
