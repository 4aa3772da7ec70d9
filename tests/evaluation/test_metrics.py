import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import sacrebleu.dataset.base

from nmt.errors import ConfigError, DataError, StorageError
from nmt.evaluation import metrics

CASES = {
    "plain": (
        ["the cat sat on the mat", "a dog barked ."],
        [["the cat sat on a mat", "the dog barked."]],
        {},
    ),
    "empty": (["", "", "fine words here now"], [["some words", "", "fine words here now then"]], {}),
    "chinese": (
        ["我喜欢吃苹果。", "今天天气很好"],
        [["我爱吃苹果。", "今天的天气很好!"]],
        {"tgt_lang": "zh"},
    ),
    "breaks": (
        ["one\rtwo three four five", "six\u2028seven eight nine ten ", "last\x0bone\x85here is it\r"],
        [["one two three\rfour five", "six seven\u2028eight nine ten", "last one here is it\u2029"]],
        {},
    ),
    "two references": (
        ["the quick brown fox jumps", "over the lazy dog"],
        [["the fast brown fox jumps", "over a lazy dog"], ["the quick fox leaps", "over the lazy dogs"]],
        {},
    ),
    "lowercase": (["The CAT Sat On The Mat"], [["the cat sat on a Mat"]], {"lowercase": True}),
}


def cli(tmp_path: Path, hyps: list[str], refs: list[list[str]], options: list[str]) -> dict[str, dict[str, object]]:
    """The scores of the sacrebleu command line, by name."""
    names = []
    for number, stream in enumerate([hyps, *refs]):
        file = tmp_path / f"{number}.txt"
        file.write_bytes("".join(line + "\n" for line in stream).encode())
        names.append(str(file))
    command = [
        sys.executable,
        "-m",
        "sacrebleu",
        *names[1:],
        "-i",
        names[0],
        "-w",
        "4",
        "-m",
        "bleu",
        "chrf",
        "ter",
    ]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    return {entry["name"]: entry for entry in json.loads(done.stdout)}


@pytest.mark.parametrize("case", CASES)
def test_scores_and_signatures_are_those_of_the_command_line(case: str, tmp_path: Path) -> None:
    hyps, refs, options = CASES[case]
    flags = ["-l", "en-zh"] if "tgt_lang" in options else []
    flags += ["-lc", "--chrf-lowercase"] if "lowercase" in options else []
    expected = cli(tmp_path, hyps, refs, flags)
    scores = metrics.score(hyps, refs, **options)
    assert [s.name for s in scores] == ["BLEU", "chrF2", "TER"]
    for got in scores:
        assert f"{got.value:.4f}" == f"{expected[got.name]['score']:.4f}"
        assert got.signature == expected[got.name]["signature"]
        assert got.detail == expected[got.name].get("verbose_score", "")
    assert f"nrefs:{len(refs)}|" in scores[0].signature


def test_score_values_known_by_hand() -> None:
    same = metrics.score(["a b c d e"], [["a b c d e"]])
    assert [s.value for s in same] == pytest.approx([100.0, 100.0, 0.0])
    assert same[0].detail == "100.0/100.0/100.0/100.0 (BP = 1.000 ratio = 1.000 hyp_len = 5 ref_len = 5)"
    (ter,) = metrics.score(["a b c d"], [["a b c x"]], metrics=["ter"])
    assert ter.value == pytest.approx(25.0)


def test_the_tokenizer_follows_the_language() -> None:
    def tok(**options: str) -> str:
        (bleu,) = metrics.score(["我 a"], [["我 a"]], metrics=["bleu"], **options)
        return bleu.signature

    assert "tok:13a|" in tok() and "tok:13a|" in tok(tgt_lang="de")
    assert "tok:zh|" in tok(tgt_lang="zh") and "tok:zh|" in tok(tgt_lang="zh-CN")
    assert "tok:char|" in tok(tgt_lang="zh", tokenize="char")


@pytest.mark.parametrize("lang", ["ja", "ko"])
def test_a_missing_mecab_names_the_extra_and_the_way_out(lang: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"sacrebleu.tokenizers.tokenizer_{lang}_mecab.MeCab", None)
    with pytest.raises(ConfigError, match=rf"sacrebleu\[{lang}\].*--tokenize char") as caught:
        metrics.score(["a"], [["a"]], tgt_lang=lang)
    assert "\n" not in str(caught.value)


def test_unknown_names_and_unequal_counts() -> None:
    with pytest.raises(ConfigError, match=r'"blue".*did you mean bleu'):
        metrics.score(["a"], [["a"]], metrics=["blue"])
    with pytest.raises(ConfigError, match=r'"moses".*none, zh, 13a, intl, char'):
        metrics.score(["a"], [["a"]], tokenize="moses")
    with pytest.raises(DataError, match=r"Reference 2 has 1 lines.*2 hypotheses"):
        metrics.score(["a", "b"], [["a", "b"], ["a"]])
    with pytest.raises(DataError, match="0 hypotheses"):
        metrics.score([], [[]])
    with pytest.raises(DataError, match="no reference"):
        metrics.score(["a"], [])


def test_warns_of_pieces_and_tokens_only() -> None:
    warn = metrics.warn_if_tokenised
    assert "subword" in (warn(["▁the ▁cat s", "plain"]) or "")
    assert "2 of 2" in (warn(["the un@@ known cat", "ends with@@"]) or "")
    assert "detached" in (warn(["A cat sat .", "A dog barked .", "", "No stop"]) or "")
    assert warn(["A cat sat.", "Mail me@@home or a@b.c", "Quel jour ?", "One slip ."]) is None
    assert warn([]) is None and warn(["", " "]) is None


def load_in_subprocess(cache: Path, name: str, langpair: str) -> dict[str, object]:
    """Load a set in a fresh process: sacreBLEU reads $SACREBLEU when it is imported."""
    code = (
        "import dataclasses, json, sys; from nmt.evaluation.metrics import load_test_set;"
        "print(json.dumps(dataclasses.asdict(load_test_set(*sys.argv[1:]))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, name, langpair],
        env={**os.environ, "SACREBLEU": str(cache), "PYTHONPATH": str(Path(metrics.__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    loaded: dict[str, object] = json.loads(done.stdout)
    return loaded


def test_loads_a_cached_set_with_all_references_split_on_newlines_alone(tmp_path: Path) -> None:
    folder = tmp_path / "wmt17" / "ms"
    folder.mkdir(parents=True)
    text = {"src": "一\u2028二\n三\x85四\n", "docid": "d\nd\n", "genre": "g\ng\n", "origlang": "zh\nzh\n"}
    text |= {f"ref-{k}": f"one\rtwo {k}\nthree \n" for k in range(4)}
    for field in text:
        (folder / f"wmt17_ms.zh-en.{field}").write_bytes(text[field].encode())
    loaded = load_in_subprocess(tmp_path, "wmt17/ms", "zh-en")
    assert loaded["sources"] == ["一\u2028二", "三\x85四"]
    references = loaded["references"]
    assert isinstance(references, list) and references[0] == ["one\rtwo 0", "three "]
    assert len(references) >= 2 and all(len(stream) == 2 for stream in references)


def test_loads_a_set_that_is_downloaded_but_not_unpacked_to_text(tmp_path: Path) -> None:
    dataset = sacrebleu.dataset.DATASETS["wmt14/full"]
    raw = tmp_path / "wmt14/full/raw"
    for url in dataset.data:
        archive = raw / f"wmt14_full.{os.path.basename(url)}"
        archive.parent.mkdir(parents=True, exist_ok=True)
        archive.write_bytes(b"already unpacked")
    for file, line in zip(dataset.langpairs["de-en"], ["Ein Satz.", "A  sentence."], strict=True):
        (raw / file).parent.mkdir(parents=True, exist_ok=True)
        (raw / file).write_text(f'<doc docid="x" genre="news" origlang="de">\n<seg id="1">{line}</seg>\n</doc>\n')
    loaded = load_in_subprocess(tmp_path, "wmt14/full", "de-en")
    assert loaded == {
        "name": "wmt14/full",
        "langpair": "de-en",
        "sources": ["Ein Satz."],
        "references": [["A sentence."]],
    }


def test_offline_no_network_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(url: str, *_: object, **__: object) -> None:
        urllib.request.urlopen(url)

    dataset = sacrebleu.dataset.DATASETS["wmt14/full"]
    monkeypatch.setattr(dataset, "_outdir", str(tmp_path))
    monkeypatch.setattr(dataset, "_rawdir", str(tmp_path / "raw"))
    monkeypatch.setattr(sacrebleu.dataset.base, "download_file", download)
    monkeypatch.setattr(urllib.request, "_opener", None)  # what is installed there goes away again
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError, match=r"could not be downloaded: .*the network is not to be asked \(--offline\)"):
        metrics.load_test_set("wmt14/full", "de-en")


@pytest.mark.parametrize(
    ("failure", "error", "words"),
    [
        (urllib.error.URLError("no route"), DataError, "could not be downloaded.*no route"),
        (SystemExit(1), DataError, "damaged or incomplete"),
        (OSError(28, "No space left on device"), StorageError, "cannot be stored.*No space left"),
    ],
)
def test_a_failed_download_says_how_to_go_on(
    failure: BaseException,
    error: type[Exception],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise failure

    dataset = sacrebleu.dataset.DATASETS["wmt14/full"]
    monkeypatch.setattr(dataset, "_outdir", str(tmp_path))
    monkeypatch.setattr(dataset, "_rawdir", str(tmp_path / "raw"))
    monkeypatch.setattr(sacrebleu.dataset.base, "download_file", fail)
    with pytest.raises(error, match=words) as caught:
        metrics.load_test_set("wmt14/full", "de-en")
    for part in ('"wmt14/full"', "$SACREBLEU", "~/.sacrebleu", "--src FILE --ref FILE"):
        assert part in str(caught.value)


def test_unknown_sets_and_pairs_name_the_nearest() -> None:
    with pytest.raises(DataError, match=r'no test set "wmt41".*did you mean .*--src FILE'):
        metrics.load_test_set("wmt41", "en-de")
    with pytest.raises(DataError, match=r'"wmt14".*"de-xx".*de-en'):
        metrics.load_test_set("wmt14", "de-xx")
