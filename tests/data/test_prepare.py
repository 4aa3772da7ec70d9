"""From recipe to caches: what is made, when it is made again, and what cannot be used."""

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmt.config import Config, TokenizerConfig, parse_config
from nmt.data.prepare import Prepared, _hold_out, prepare
from nmt.errors import BundleError, ConfigError, DataError
from nmt.storage.manifest import file_sha256
from nmt.text.tokenizer import Tokenizer, train_sentencepiece

rng = random.Random(7)
WORDS = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 6))) for _ in range(80)]


def sentences(count: int, seed: int) -> list[tuple[str, str]]:
    """Distinct pairs."""
    words = random.Random(seed)
    return [
        (f"s{i} " + " ".join(words.choices(WORDS, k=4)), f"t{i} " + " ".join(words.choices(WORDS, k=5)))
        for i in range(count)
    ]


def write(folder: Path, name: str, pairs: list[tuple[str, str]]) -> None:
    for side, language in enumerate(("en", "de")):
        (folder / f"{name}.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder with 200 pairs to train on and 20 to validate."""
    write(tmp_path, "train", sentences(200, 1))
    write(tmp_path, "valid", sentences(20, 2))
    return tmp_path


def recipe(folder: Path, **sections: dict[str, Any]) -> Config:
    tables: dict[str, dict[str, Any]] = {
        "data": {"dir": str(folder), "train": "train", "valid": "valid"},
        "tokenizer": {"vocab_size": 350},
        "training": {"max_updates": 1},
    }
    names = {*tables, *sections}
    return parse_config({name: {**tables.get(name, {}), **sections.get(name, {})} for name in names}, "x")


def held_out(folder: Path, **data: Any) -> Config:
    config = recipe(folder, data=data).model_dump(exclude_none=True)
    del config["data"]["valid"]
    return parse_config(config, "x")


def run(config: Config, said: list[str] | None = None, **options: Any) -> Prepared:
    return prepare(config, Path(config.data.dir) / "cache", (said if said is not None else []).append, **options)


def train_texts(prepared: Prepared) -> list[tuple[str, str]]:
    """The training pairs, read back from the cache (all pieces are the joint tokenizer's)."""
    cache, decode = prepared.train, prepared.tokenizer.decode
    return [(decode(cache.src(i).tolist()), decode(cache.tgt(i).tolist())) for i in range(len(cache))]


def made(said: list[str]) -> list[str]:
    """Which things were made anew."""
    kinds = {"training a": "tokenizer", " train pairs": "train", " valid pairs": "valid"}
    return [kind for line in said for mark, kind in kinds.items() if mark in line and not line.startswith("reading")]


def test_the_pairs_held_out_are_those_of_earlier_versions() -> None:
    keep = np.random.default_rng(1).random(50_000) < 0.7
    for size in (1, 20, 3000, 10**6):
        kept = np.flatnonzero(keep)
        chosen = np.random.default_rng(5).choice(kept, size=min(size, len(kept) // 10), replace=False)
        assert np.array_equal(np.flatnonzero(_hold_out(keep, size, seed=5)), np.sort(chosen))
    assert not np.array_equal(_hold_out(keep, 20, seed=5), _hold_out(keep, 20, seed=6))


def test_everything_is_prepared(corpus: Path) -> None:
    said: list[str] = []
    prepared = run(recipe(corpus), said)
    assert prepared.counts == {"train": {"read": 200, "kept": 200}, "valid": {"read": 20, "kept": 20}}
    assert train_texts(prepared) == sentences(200, 1)
    assert list(zip(prepared.valid_src, prepared.valid_tgt, strict=True)) == sentences(20, 2)
    assert prepared.tokenizer.joint and prepared.tokenizer.src_vocab_size == 350
    assert made(said) == ["tokenizer", "valid", "train"]
    assert said[-2:] == ["train: 200 read, 200 kept", "valid: 20 read, 20 kept"]


def test_counts_by_rule(corpus: Path) -> None:
    pairs = sentences(50, 1)
    odd = [("", "x"), ("y", ""), pairs[0], pairs[1], ("a b " * 100, "b a " * 100), ("a b c", " ".join(WORDS[:30]))]
    write(corpus, "train", pairs + odd)
    write(corpus, "valid", [*sentences(20, 2), ("", "x"), ("a " * 300, "b " * 300)])
    said: list[str] = []
    prepared = run(recipe(corpus, data={"max_length": 100, "max_length_ratio": 2.0}), said)
    assert prepared.counts["train"] == {
        "read": 56, "kept": 50, "empty": 2, "duplicate": 2, "too long": 1, "length ratio": 1,
    }  # fmt: skip
    assert prepared.counts["valid"] == {"read": 22, "kept": 20, "empty": 1, "too long": 1}
    assert "valid: 22 read, 20 kept, 1 empty, 1 too long" in said
    assert train_texts(prepared) == pairs
    for counts in prepared.counts.values():
        assert counts["read"] == sum(number for rule, number in counts.items() if rule != "read")


def test_nothing_is_made_twice(corpus: Path) -> None:
    first = run(recipe(corpus))
    said: list[str] = []
    second = run(recipe(corpus), said)
    assert made(said) == []
    assert second.tokenizer.sha256 == first.tokenizer.sha256
    assert second.counts == first.counts
    assert (second.train.folder, second.valid.folder) == (first.train.folder, first.valid.folder)


def test_any_number_of_threads_prepares_the_same_bytes(
    corpus: Path, tmp_path_factory: pytest.TempPathFactory, figure: Callable[..., None]
) -> None:
    def sums(threads: int, **data: int) -> list[tuple[str, str]]:
        folder = tmp_path_factory.mktemp("cache")
        prepare(recipe(corpus, data={"valid": "valid", **data}), folder, lambda text: None, threads=threads)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return [(path.relative_to(folder).as_posix(), file_sha256(path)) for path in files]

    found = [sums(threads) for threads in (1, 4, 1, 4)]
    assert len(found[0]) > 10 and sums(1, max_length=20) != found[0]  # the negative control
    same = sum(each == found[0] for each in found)
    figure("prepared_bytes", f"sha256 equal in {same} of 4 (1 and 4 threads, twice)", "4 of 4", same == 4)


def test_files_moved_or_touched_are_found_again(corpus: Path) -> None:
    """The key is the content, not the name or the time."""
    run(recipe(corpus))
    for language in ("en", "de"):
        (corpus / f"train.{language}").rename(corpus / f"moved.{language}")
    said: list[str] = []
    run(recipe(corpus, data={"train": "moved"}), said)
    assert made(said) == []


@pytest.mark.parametrize(
    ("change", "remade"),
    [
        ("content", ["tokenizer", "valid", "train"]),
        ("order", ["tokenizer", "train"]),
        ("valid content", ["valid"]),
        ("tokenizer", ["tokenizer", "valid", "train"]),
        ("rules", ["valid", "train"]),
        ("duplicates", []),
        ("model", []),
    ],
)
def test_what_changed_is_made_again(corpus: Path, change: str, remade: list[str]) -> None:
    run(recipe(corpus))
    sections: dict[str, dict[str, Any]] = {}
    if change == "content":
        write(corpus, "train", [*sentences(199, 1), ("a new", "pair")])
    elif change == "order":
        write(corpus, "train", sentences(200, 1)[::-1])  # the tokenizer comes out the same
    elif change == "valid content":
        write(corpus, "valid", sentences(21, 2))
    elif change == "tokenizer":
        sections = {"tokenizer": {"vocab_size": 340}}
    elif change == "rules":
        sections = {"data": {"max_length": 99}}
    elif change == "duplicates":
        sections = {"data": {"remove_duplicates": False}}  # there are none: the same pairs are kept
    else:
        sections = {"model": {"d_model": 64}, "training": {"learning_rate": 1e-4}}
    said: list[str] = []
    prepared = run(recipe(corpus, **sections), said)
    assert made(said) == remade
    again = run(recipe(corpus, **sections))
    assert train_texts(again) == train_texts(prepared)


@pytest.mark.parametrize("name", ["src.tokens", "tgt.offsets", "meta.json", "manifest.json", "tokenizer.model"])
@pytest.mark.parametrize("change", ["cut", "flip"])
def test_what_is_damaged_in_the_cache_is_made_again(corpus: Path, name: str, change: str) -> None:
    """D1: the same size or not, a checksum tells."""
    made_first: list[str] = []
    prepared = run(recipe(corpus), made_first)
    (tokenizer,) = prepared.train.folder.parent.glob("tokenizer-*")
    path = (tokenizer if name == "tokenizer.model" else prepared.train.folder) / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data if change == "flip" else data[:-2])
    said: list[str] = []
    again = run(recipe(corpus), said)
    assert train_texts(again) == sentences(200, 1) and again.tokenizer.sha256 == prepared.tokenizer.sha256
    assert sum(f"warning: {path.parent} is damaged" in line for line in said) == 1
    assert made(said) == (["tokenizer"] if name == "tokenizer.model" else ["train"])
    said.clear()
    run(recipe(corpus), said)
    assert not made(said) and not any(line.startswith("warning") for line in said)


@pytest.mark.parametrize(("valid_size", "held"), [(1, 1), (10, 10), (20, 20), (1000, 20)])
def test_held_out_validation_is_disjoint_from_train(corpus: Path, valid_size: int, held: int) -> None:
    """D5: no pair is in both; together they are all pairs; at most a tenth is held out."""
    pairs = sentences(200, 1)
    write(corpus, "train", pairs + pairs[:50])  # repeated pairs must not end on both sides
    prepared = run(held_out(corpus, valid_size=valid_size))
    valid = list(zip(prepared.valid_src, prepared.valid_tgt, strict=True))
    train = train_texts(prepared)
    assert len(valid) == len(prepared.valid) == held
    assert set(valid) & set(train) == set()
    assert sorted(valid + train) == sorted(pairs)
    assert prepared.counts["train"] == {"read": 250, "kept": 200 - held, "duplicate": 50, "held out": held}


def test_held_out_validation_follows_the_seed(corpus: Path) -> None:
    config = held_out(corpus, valid_size=10)
    first, second, other = run(config), run(config), run(config.replace(training={"seed": 2}))
    assert first.valid_src == second.valid_src != other.valid_src


def test_several_sources_follow_one_another(corpus: Path) -> None:
    (corpus / "more.tsv").write_text("one more\tnoch eins\n")
    prepared = run(recipe(corpus, data={"train": ["train", "more.tsv"]}))
    assert prepared.counts["train"]["read"] == 201
    assert train_texts(prepared)[-1] == ("one more", "noch eins")


@pytest.mark.parametrize(
    ("train", "valid", "message"),
    [
        ([], None, r"no text.*of 0 training pairs"),
        ([("", "x")] * 3, None, r"no text.*of 3 training pairs, 3 have an empty side"),
        (None, [], r"No valid pair is left of 0"),
        (None, [("", "x")] * 4, r"No valid pair is left of 4.*'empty': 4"),
        (None, [("a " * 300, "b " * 300)] * 2, r"No valid pair is left of 2.*'too long': 2"),
        ([(f"a {i}", f"{i} b " * 200) for i in range(30)], None, r"No train pair is left of 30.*'too long': 30"),
    ],
    ids=["no train", "empty train", "no valid", "empty valid", "long valid", "long train"],
)
def test_nothing_left_is_an_error_with_counts(corpus: Path, train: Any, valid: Any, message: str) -> None:
    if train is not None:
        write(corpus, "train", train)
    if valid is not None:
        write(corpus, "valid", valid)
    with pytest.raises(DataError, match=message):
        run(recipe(corpus, tokenizer={"vocab_size": 320}))


def test_too_few_pairs_to_hold_some_out(corpus: Path) -> None:
    write(corpus, "train", sentences(9, 1))
    with pytest.raises(DataError, match=r"too few training pairs to hold some out .*'read': 9"):
        run(held_out(corpus))


def test_small_text_lowers_the_vocabulary_with_a_warning(corpus: Path) -> None:
    said: list[str] = []
    prepared = run(recipe(corpus, tokenizer={"vocab_size": 32_000}), said)
    size = prepared.tokenizer.src_vocab_size
    assert size < 32_000
    warnings = [line for line in said if line.startswith("warning")]
    assert len(warnings) == 2 and all(f"only {size:,}" in line and "32,000" in line for line in warnings)


def test_separate_vocabularies(corpus: Path) -> None:
    untied = {"tied_embeddings": "none"}
    prepared = run(recipe(corpus, tokenizer={"vocab_size": 320, "joint": False}, model=untied))
    assert not prepared.tokenizer.joint
    assert [prepared.tokenizer.src_vocab_size, prepared.tokenizer.tgt_vocab_size] == [320, 320]
    assert prepared.tokenizer.encode_src(["s1"])[0] == prepared.tokenizer._src.encode("s1", add_eos=True)
    assert len(prepared.train) == 200


@pytest.mark.parametrize("absolute", [True, False])
def test_tokenizer_given_by_path(corpus: Path, absolute: bool) -> None:
    model = train_sentencepiece([src for src, _ in sentences(50, 9)], TokenizerConfig(vocab_size=310))
    (corpus / "my.model").write_bytes(model)
    path = str(corpus / "my.model") if absolute else "my.model"
    said: list[str] = []
    prepared = run(recipe(corpus, tokenizer={"src_model": path}), said)
    assert prepared.tokenizer.src_model == model and prepared.tokenizer.joint
    assert made(said) == ["valid", "train"]


def test_tokenizer_given_by_path_that_is_none(corpus: Path) -> None:
    with pytest.raises(ConfigError, match=r"Cannot read the tokenizer .*my\.model"):
        run(recipe(corpus, tokenizer={"src_model": "my.model"}))
    (corpus / "my.model").write_text("this is no model")
    with pytest.raises(BundleError, match="not a SentencePiece model"):
        run(recipe(corpus, tokenizer={"src_model": "my.model"}))


def test_tokenizer_given_as_an_object_wins(corpus: Path) -> None:
    given = Tokenizer(train_sentencepiece([tgt for _, tgt in sentences(50, 9)], TokenizerConfig(vocab_size=310)))
    said: list[str] = []
    assert run(recipe(corpus), said, tokenizer=given).tokenizer is given
    assert "tokenizer" not in made(said)


def test_mistakes_of_validation_show_before_training_text_is_encoded(corpus: Path) -> None:
    (corpus / "valid.de").write_text("only one\n")
    said: list[str] = []
    with pytest.raises(DataError, match=r"has 20 lines but .*valid\.de has 1"):
        run(recipe(corpus), said)
    assert "train" not in made(said)


def test_left_overs_of_a_killed_run_are_removed(corpus: Path) -> None:
    (corpus / "cache").mkdir()
    (corpus / "cache" / "train-0.tmp-4194305").mkdir()  # above the largest process number
    run(recipe(corpus))
    assert [path.name for path in (corpus / "cache").iterdir() if ".tmp-" in path.name] == []


def test_unknown_pieces_are_said_and_many_are_refused(corpus: Path) -> None:
    plain = {"vocab_size": 320, "byte_fallback": False}
    said: list[str] = []
    prepared = run(recipe(corpus, tokenizer=plain), said)
    assert prepared.train.unknown["src"][0] == 0 and prepared.train.unknown["src"][1] > 1000
    told = "unknown pieces: 0.00% of the source, 0.00% of the target"
    assert f"train: {told}" in said and f"valid: {told}" in said
    given = train_sentencepiece([text for pair in sentences(200, 1) for text in pair], TokenizerConfig(**plain))
    (corpus / "my.model").write_bytes(given)
    wrong = [(src, " ".join("жук" for _ in tgt.split())) for src, tgt in sentences(20, 2)]
    write(corpus, "valid", wrong)
    with pytest.raises(DataError, match=r"50% of the target pieces of the valid text are <unk> .*byte_fallback = true"):
        run(recipe(corpus, tokenizer=plain | {"src_model": "my.model"}))
    assert run(recipe(corpus)).valid.unknown["tgt"][0] == 0  # bytes
    write(corpus, "valid", [*sentences(20, 2), wrong[0]])  # six unknown pieces are told, not refused
    said.clear()
    run(recipe(corpus, tokenizer=plain | {"src_model": "my.model"}), said)
    (told,) = [line for line in said if line.startswith("valid: unknown")]
    assert re.fullmatch(r"valid: unknown pieces: 0.00% of the source, [1-4].\d\d% of the target", told)


def test_tags_stand_before_source_text(corpus: Path) -> None:
    write(corpus, "other", [*sentences(30, 4), sentences(1, 1)[0]])
    train = ["train", {"prefix": "other", "tag": "<other>"}]
    valid = {"prefix": "valid", "tag": "<valid>"}
    prepared = run(recipe(corpus, data={"train": train, "valid": valid}, tokenizer={"user_symbols": ["<2de>"]}))
    assert prepared.counts["train"] == {"read": 231, "kept": 230, "duplicate": 1}  # the tag does not make it another
    assert prepared.train.source_sizes == [200, 30]
    expected = sentences(200, 1) + [(f"<other> {src}", tgt) for src, tgt in sentences(30, 4)]
    assert train_texts(prepared) == expected
    assert prepared.valid_src[0] == f"<valid> {sentences(1, 2)[0][0]}"
    tokenizer, pieces = prepared.tokenizer, ["<2de>", "<other>", "<valid>"]
    numbers = [tokenizer._src.piece_to_id(piece) for piece in pieces]
    assert prepared.train.src(200).tolist().count(numbers[1]) == 1
    assert tokenizer.encode_src(["a<2de>b"])[0].count(numbers[0]) == 1  # inline too, and never a control piece
    assert not set(numbers) & {0, 1, 2, 3}
    # Another tag is other text; a tokenizer that is given must have it.
    again = recipe(corpus, data={"train": ["train", {"prefix": "other", "tag": "<2de>"}], "valid": valid})
    assert run(again, tokenizer=tokenizer).train.folder != prepared.train.folder
    missing = recipe(corpus, data={"train": {"prefix": "other", "tag": "<lo>"}})
    with pytest.raises(ConfigError, match=r"The tag <lo> is no user symbol of the tokenizer: it knows <2de>, <other>"):
        run(missing, tokenizer=tokenizer)


def test_what_earlier_versions_named_is_found_again(corpus: Path) -> None:
    """Weights and tags alone give caches other names, and sampling none."""
    plain = run(recipe(corpus))
    names = sorted(path.name for path in (corpus / "cache").iterdir())
    assert names == ["tokenizer-40bbdb03f4ad6e8e", "train-59474e7cc6485743", "valid-71707b69e912e558"]
    sampled, weighted = {"max_updates": 1, "bpe_dropout": 0.1}, {"prefix": "train", "weight": 2.0}
    assert run(recipe(corpus, training=sampled)).train.folder == plain.train.folder
    assert run(recipe(corpus, data={"train": weighted})).train.folder != plain.train.folder


def test_the_share_of_single_sentences_is_measured(corpus: Path) -> None:
    pairs = [(f"One {n}. Two.", f"eins {n}") if n % 4 == 0 else (f"Three {n}.", f"drei {n}") for n in range(200)]
    write(corpus, "train", pairs)
    for _ in range(2):  # made, and found again
        prepared = run(recipe(corpus))
        assert prepared.one_sentence_share == 0.75
        assert Prepared.from_json(prepared.to_json()).one_sentence_share == 0.75
