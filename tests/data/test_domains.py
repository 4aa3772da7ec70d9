"""Domains of one source: which pairs are whose, how often an epoch sees them, and what cannot be."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmt.config import Config, parse_config
from nmt.data.batching import BatchStream
from nmt.data.check import check
from nmt.data.domains import corpora_of
from nmt.data.prepare import prepare
from nmt.data.sources import read_chunks
from nmt.errors import ConfigError, DataError, NmtError

PAIRS = 120
DOMAINS = ["bible" if number % 4 == 0 else "help" if number % 4 == 1 else "php" for number in range(PAIRS)]
WEIGHTS = {"help": 3.0, "bible": 0.5}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    for language in ("en", "de"):
        for name, start, count in (("train", 0, PAIRS), ("valid", PAIRS, 10)):
            lines = [f"{language} train words {number + start}\n" for number in range(count)]
            (tmp_path / f"{name}.{language}").write_text("".join(lines))
    write_domains(tmp_path, DOMAINS)
    return tmp_path


def write_domains(folder: Path, domains: list[str]) -> None:
    (folder / "train.domain").write_text("".join(f"{domain}\n" for domain in domains))


def recipe(folder: Path, weights: dict[str, float], **data: Any) -> Config:
    domains = {"train_domain": "train.domain", "domain_weights": weights}
    sections: dict[str, dict[str, Any]] = {
        "data": {"dir": str(folder), "train": "train", "valid": "valid", **domains, **data},
        "tokenizer": {"vocab_size": 120, "byte_fallback": False},
        "training": {"max_updates": 1},
    }
    return parse_config(sections, "x")


def texts(config: Config) -> list[list[str]]:
    return [[line for src, _ in read_chunks(each, config.data) for line in src] for each in corpora_of(config.data)]


def test_every_pair_is_of_one_domain(corpus: Path) -> None:
    of_domain = {domain: [f"en train words {n}" for n in range(PAIRS) if DOMAINS[n] == domain] for domain in DOMAINS}
    assert texts(recipe(corpus, WEIGHTS)) == [of_domain["help"], of_domain["bible"], of_domain["php"]]
    assert texts(recipe(corpus, {"help": 0.0})) == [
        [line for line in texts(recipe(corpus, {"help": 1.0}))[1] if line not in of_domain["help"]]
    ]


def test_an_epoch_sees_each_domain_by_its_weight(corpus: Path, figure: Callable[..., None]) -> None:
    config, said = recipe(corpus, WEIGHTS), list[str]()
    prepared = prepare(config, corpus / "cache", said.append, threads=1)
    assert "train: 30 pairs of help, weight 3" in said and "train: 60 pairs of other domains, weight 1" in said
    weights = [source.weight for source in corpora_of(config.data)]
    stream = BatchStream(prepared.train, prepared.tokenizer.special, 200, 1, weights=weights)
    seen: Counter[str] = Counter()
    for _ in range(stream.batches_in_epoch):
        for pair in stream.draw().tolist():
            text = prepared.tokenizer.decode(prepared.train.src(pair).tolist())
            seen[DOMAINS[int(text.split()[-1])]] += 1
    expected = {"help": 3 * 30, "bible": 15, "php": 60}
    figure("pairs_by_domain", dict(sorted(seen.items())), f"{dict(sorted(expected.items()))}", seen == expected)


def test_the_weight_of_the_source_counts_too(corpus: Path) -> None:
    config = recipe(corpus, WEIGHTS, train={"prefix": "train", "weight": 2.0})
    assert [source.weight for source in corpora_of(config.data)] == [6.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("domains", "weights", "message"),
    [
        (DOMAINS, {"hlep": 2.0}, r"train\.domain has no line 'hlep'.* It has: 'bible', 'help', 'php'\."),
        (DOMAINS, {"hlep": 0.0}, "has no line 'hlep'"),
        (DOMAINS[1:], WEIGHTS, r"has 119 lines but .*train\.en \+ .*train\.de has 120 pairs"),
        ([*DOMAINS, "php"], WEIGHTS, "has 121 lines but .* has 120 pairs"),
    ],
)
def test_a_file_that_does_not_fit(corpus: Path, domains: list[str], weights: dict[str, float], message: str) -> None:
    write_domains(corpus, domains)
    with pytest.raises(DataError, match=message):
        texts(recipe(corpus, weights))


def test_what_cannot_be(corpus: Path) -> None:
    for data, message in (
        ({"domain_weights": {}}, "goes with domain_weights"),
        ({"train_domain": None}, "train_domain = FILE goes with"),
        ({"train": ["train", "valid"]}, "train_domain is of one source"),
        ({"domain_weights": {" help": 1.0}}, "has no name, or spaces around it"),
    ):
        with pytest.raises(ConfigError, match=message):
            recipe(corpus, WEIGHTS, **data)
    with pytest.raises(NmtError, match=r"train\.domain is text that is read"):
        prepare(
            recipe(corpus, WEIGHTS, src_lang="domain", train={"src": "train.en", "tgt": "train.de"}),
            corpus / "cache",
            lambda text: None,
            text_out=corpus / "train",
        )


def test_no_domain_is_left(corpus: Path) -> None:
    with pytest.raises(DataError, match=r"data\.domain_weights is 0 for every domain"):
        prepare(recipe(corpus, dict.fromkeys(DOMAINS, 0.0)), corpus / "cache", lambda text: None)


def test_the_check_of_the_corpus_says_what_training_would_refuse(corpus: Path) -> None:
    assert check(recipe(corpus, WEIGHTS).data).refusals == []
    write_domains(corpus, DOMAINS[1:])
    (refusal,) = check(recipe(corpus, WEIGHTS).data).refusals
    assert "has 119 lines" in refusal
