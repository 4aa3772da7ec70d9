"""`training.compile` through the trainer: no program is made once training runs, and a resume stays exact."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import tiny
from nmt.bundle import list_checkpoints
from nmt.config import Config, load_config
from nmt.data.toy import write_toy
from nmt.errors import ConfigError
from nmt.model.compiled import compile_problem
from nmt.training import resume, run
from nmt.training.distributed import Ranks
from nmt.training.interrupt import StopRequest
from nmt.training.progress import TrainingLog
from nmt.training.trainer import Trainer

CPU = torch.device("cpu")
CAN_COMPILE = compile_problem(CPU) is None
needs_compiler = pytest.mark.skipif(not CAN_COMPILE, reason="torch.compile does not work here")
DROPOUT = {"dropout": 0.2, "embedding_dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1}


@pytest.fixture(autouse=True)
def _from_nothing() -> Iterator[None]:
    if CAN_COMPILE:
        torch._dynamo.reset()
    with tiny.one_thread():
        yield


def new_trainer(config: Config, folder: Path) -> Trainer:
    folder.mkdir(exist_ok=True)
    log = TrainingLog(quiet=True)
    opened = run._open(config, folder, CPU, None, 1, log)
    return run._trainer(opened, folder, CPU, log, StopRequest(), Ranks())


@pytest.mark.slow
@pytest.mark.timeout(1200)
@needs_compiler
def test_no_program_is_made_after_the_start(tmp_path: Path, figure: Callable[..., None]) -> None:
    """Over all shapes of an epoch of the toy corpus, dropout and gradient checkpointing on."""
    write_toy(tmp_path / "toy")
    config = load_config(Path(__file__).parents[2] / "configs" / "toy.toml").replace(
        data={"dir": str(tmp_path / "toy")},
        model={**tiny.SHAPE, **DROPOUT},
        training={"compile": True, "gradient_checkpointing": True},
    )
    work = new_trainer(config, tmp_path / "run")
    before = counters["stats"]["unique_graphs"]
    work.try_widest_batches()
    at_start = counters["stats"]["unique_graphs"] - before
    assert at_start >= 4  # the control: the counter counts
    shapes, batch = set(), work.stream.batch

    def noted(pairs: Any) -> Any:
        made = batch(pairs)
        shapes.add((made.src.shape, made.tgt_out.shape))
        return made

    work.stream.batch = noted  # type: ignore[method-assign]
    while work.state.epoch == 0:
        work.one_update()
    more = counters["stats"]["unique_graphs"] - before - at_start
    said = f"{more} in {work.state.update} updates of {len(shapes)} shapes, {at_start} programs at the start"
    figure("recompiles_after_warmup", said, "0", more == 0)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@needs_compiler
def test_a_compiled_run_resumes_exactly(tmp_path: Path, figure: Callable[..., None]) -> None:
    corpus = tiny.write(
        tmp_path / "corpus", model={**tiny.SHAPE, **DROPOUT}, training={"compile": True, "max_updates": 6}
    )
    for name, ends in (("whole", (6,)), ("parts", (2, 4, 6))):
        for end in ends:
            torch._dynamo.reset()  # as a new process
            config = corpus.config.replace(training={"max_updates": end})
            run.train(config, tmp_path / name, device="cpu", cache=corpus.cache, quiet=True)
    last = [list_checkpoints(tmp_path / name)[-1] for name in ("whole", "parts")]
    files = ("model.safetensors", "optimizer.safetensors")
    differing = sum((last[0] / file).read_bytes() != (last[1] / file).read_bytes() for file in files)
    figure("compiled_resume_differences", differing, "0 of weights and moments, two resumes", differing == 0)


def test_auto_is_resolved(tmp_path: Path) -> None:
    corpus = tiny.write(tmp_path / "corpus", training={"max_updates": 1})
    assert corpus.config.training.compile == "auto"
    run.train(corpus.config, tmp_path / "run", device="cpu", cache=corpus.cache, quiet=True)
    assert "compile = false" in (tmp_path / "run" / "config.toml").read_text()
    earlier = resume.config_of(list_checkpoints(tmp_path / "run")[-1])
    assert run.resolve(corpus.config, CPU, earlier).training.compile is False
    asked = earlier.replace(training={"compile": True})
    with pytest.raises(ConfigError, match=r"training.compile = True \(the run has False\)"):
        resume.changed_keys(tmp_path, earlier, asked, ())
    assert resume.changed_keys(tmp_path, earlier, asked, ("config",)) == {"training.compile": "False -> True"}


def test_auto_on_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, cuda = tiny.write(tmp_path).config, torch.device("cuda")
    for problem, means in ((None, True), ("no C++ compiler", False)):
        monkeypatch.setattr(run, "compile_problem", lambda device, problem=problem: problem)
        assert run.resolve(config, cuda).training.compile is means
        assert run.resolve(config, CPU).training.compile is False
    with pytest.raises(ConfigError, match="does not work on cuda here: no C"):
        run.resolve(config.replace(training={"compile": True}), cuda)


def test_a_run_from_before_was_not_compiled(tmp_path: Path) -> None:
    import json

    corpus = tiny.write(tmp_path / "corpus", training={"max_updates": 1})
    run.train(corpus.config, tmp_path / "run", device="cpu", cache=corpus.cache, quiet=True)
    path = list_checkpoints(tmp_path / "run")[-1] / "config.json"
    old = json.loads(path.read_text())
    for key in ("compile", "gradient_checkpointing"):
        old["recipe"]["training"].pop(key, None)
    path.write_text(json.dumps(old))
    assert resume.config_of(path.parent).training.compile is False
