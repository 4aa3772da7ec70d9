"""Every command on real text, a short run each: image captions, and Japanese for what is not Latin."""

from pathlib import Path

import pytest

from demo import ROOT, bleu_of, run

pytestmark = [pytest.mark.slow, pytest.mark.real_data, pytest.mark.timeout(1200)]
SHORT = "--set training.max_minutes=1 --set validation.every=50 --set validation.max_sentences=50"


@pytest.fixture(scope="module")
def captions(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of one minute on Multi30k, and its folder of text."""
    folder, data = tmp_path_factory.mktemp("captions"), real_data / "multi30k"
    run(f"nmt train {ROOT}/configs/multi30k-en-de.toml --data {data} --out run {SHORT}", folder)
    return folder, data


def test_captions_translate_and_score(captions: tuple[Path, Path]) -> None:
    folder, data = captions
    run(f"nmt translate -m run -i {data}/test_2017_flickr.en > out.de", folder)
    assert (folder / "out.de").read_text().count("\n") == (data / "test_2017_flickr.en").read_text().count("\n")
    score = bleu_of(run(f"nmt eval --hyp out.de --ref {data}/test_2017_flickr.de --tgt-lang de", folder))
    assert 0 < score < 100


def test_captions_plot(captions: tuple[Path, Path]) -> None:
    folder, _ = captions
    run('nmt attn-plot -m run --src "A man in an orange hat." --tgt "Ein Mann mit Hut." -o map.svg', folder)
    assert (folder / "map.svg").read_text().startswith("<?xml")


def test_captions_resume_and_fine_tune(captions: tuple[Path, Path]) -> None:
    folder, data = captions
    longer = SHORT.replace("max_minutes=1", "max_minutes=1.2")
    run(f"nmt train {ROOT}/configs/multi30k-en-de.toml --data {data} --out run {longer}", folder)
    tables = f'[data]\ntrain = {{ src = "{data}/val.en", tgt = "{data}/val.de" }}\n'
    (folder / "tune.toml").write_text(tables + '[training]\nmax_updates = 5\naverage_count = 1\ninit_from = "run"\n')
    assert run("nmt train tune.toml --out tuned", folder).strip() == "tuned/bundle"


def test_japanese_without_a_config(real_data: Path, tmp_path: Path) -> None:
    for language in ("en", "ja"):
        lines = (real_data / f"tanaka_enja/train.{language}").read_text(encoding="utf-8").split("\n")[:2000]
        (tmp_path / f"tanaka.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    run("nmt train --src tanaka.en --tgt tanaka.ja --out run --set training.max_epochs=2", tmp_path)
    output = run("printf 'i am a student .\\n\\nthank you .\\n' | nmt translate -m run", tmp_path)
    assert output.count("\n") == 3
    assert output.split("\n")[1] == ""
