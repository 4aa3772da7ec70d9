"""The recipe for two files: by size, by name, and what cannot be chosen."""

from pathlib import Path

import pytest

from nmt.config import parse_config
from nmt.errors import ConfigError, DataError
from nmt.training import presets
from nmt.training.presets import preset_for_files


def files(folder: Path, lines: int = 100, src: str = "train.en", tgt: str = "train.de") -> tuple[Path, Path]:
    for name in (src, tgt):
        (folder / name).write_text("a line\n" * lines)
    return folder / src, folder / tgt


@pytest.mark.parametrize(
    ("pairs", "d_model", "vocab", "epochs"),
    [
        (20, 128, 4_000, 100),
        (50_000, 128, 4_000, 60),
        (50_001, 256, 8_000, 59),
        (500_000, 256, 8_000, 6),
        (500_001, 512, 16_000, 5),
        (5_000_001, 512, 32_000, 3),
    ],
)
def test_size_follows_the_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pairs: int, d_model: int, vocab: int, epochs: int
) -> None:
    monkeypatch.setattr(presets, "count_lines", lambda _: pairs)
    src, tgt = files(tmp_path)
    config = parse_config(preset_for_files(src, tgt, "cpu"), where="preset")  # it is a valid recipe
    assert (config.model.d_model, config.tokenizer.vocab_size) == (d_model, vocab)
    assert (config.data.src_lang, config.data.tgt_lang) == ("en", "de")
    assert config.training.max_epochs == epochs and config.validation.patience
    assert config.training.warmup_updates <= 4_000
    assert config.data.valid_size <= max(1, pairs // 20)
    assert config.training.tokens_per_batch == 2048


def test_too_few_lines(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has 9 lines: too few"):
        preset_for_files(*files(tmp_path, 9), "cpu")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Cannot read"):
        preset_for_files(tmp_path / "a.en", tmp_path / "a.de", "cpu")


@pytest.mark.parametrize("name", ["train", "train.txt", "train.english", "train.e1", "train.x"])
def test_a_name_without_a_language(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"source language cannot be read off the name {name}"):
        preset_for_files(*files(tmp_path, src=name), "cpu")
    with pytest.raises(ConfigError, match="target language"):
        preset_for_files(*files(tmp_path, tgt=name), "cpu")


def test_an_unknown_device(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--device tpu is not available"):
        preset_for_files(*files(tmp_path), "tpu")
