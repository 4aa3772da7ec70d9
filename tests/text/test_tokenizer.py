"""Tokenizers: round trips, honest sizes, and user text that never turns into control pieces."""

import io
import random
import tracemalloc
import unicodedata
from collections.abc import Callable
from dataclasses import astuple
from itertools import product
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.config import TokenizerConfig
from nmt.data.clean import Reservoir
from nmt.errors import BundleError, ConfigError, DataError
from nmt.text.model_proto import USER_DEFINED, piece_table, user_symbols
from nmt.text.tokenizer import BOS, EOS, PAD, UNK, Tokenizer, train_sentencepiece, training_text

Figure = Callable[..., None]
CONTROLS = {PAD, UNK, BOS, EOS}
SPECIALS = ["</s>", "<pad>", "<unk>", "<s>", "<0x41>", "▁", "<2de>"]


def corpus(alphabet: str, lines: int = 100, seed: int = 1) -> list[str]:
    rng = random.Random(seed)
    words = ["".join(rng.choices(alphabet, k=rng.randint(2, 7))) for _ in range(80)]
    return [" ".join(rng.choices(words, k=rng.randint(3, 9))) for _ in range(lines)]


LATIN = corpus("abcdefghijklmnopqrstuvwxyz") + ["a </s> b <pad> c <unk> <s>"] * 20
CYRILLIC = corpus("абвгдежзиклмнопрстуфхцчшщыэюя")


def train(lines: list[str] = LATIN, **options: object) -> bytes:
    return train_sentencepiece(lines, TokenizerConfig.model_validate({"vocab_size": 400, **options}))


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """A joint tokenizer whose training text itself holds `</s>` and its like."""
    return Tokenizer(train(type=request.param))


@pytest.fixture(scope="module")
def identity() -> Tokenizer:
    return Tokenizer(train(normalization="identity"))


def test_special_ids(tokenizer: Tokenizer) -> None:
    assert astuple(tokenizer.special) == (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)
    assert tokenizer.tgt_pieces([PAD, UNK, BOS, EOS]) == ["<pad>", "<unk>", "<s>", "</s>"]


def test_lines_end_with_one_eos_and_have_no_bos_and_no_padding(tokenizer: Tokenizer) -> None:
    encoded = tokenizer.encode_src([*LATIN[:20], "", " "])
    assert len(encoded) == 22
    assert [ids.count(EOS) for ids in encoded] == [1] * 22
    assert [ids[-1] for ids in encoded] == [EOS] * 22
    assert encoded[-2:] == [[EOS], [EOS]]
    assert not any({PAD, UNK, BOS} & set(ids) for ids in encoded)
    assert tokenizer.encode_src([]) == []


def test_threads_change_nothing(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode_src(LATIN, num_threads=4) == tokenizer.encode_src(LATIN)


def test_decode_drops_control_pieces(tokenizer: Tokenizer) -> None:
    (ids,) = tokenizer.encode_tgt(["abc def"])
    assert tokenizer.decode([BOS, *ids, PAD, PAD]) == "abc def"
    assert tokenizer.decode([]) == tokenizer.decode([EOS]) == ""


@pytest.mark.parametrize(
    ("text", "back"),
    [
        ("a  b", "a b"),
        (" leading and trailing ", "leading and trailing"),
        ("wait…", "wait..."),
        ("ﬁne", "fine"),
        ("ｆｕｌｌ １２３", "full 123"),
        ("non\xa0breaking", "non breaking"),
        ("Grün, ça va ñ", "Grün, ça va ñ"),
        ("👨\u200d👩\u200d👧 family", "👨\u200d👩\u200d👧 family"),
        ("漢字 かな", "漢字 かな"),
        ("שלום مرحبا", "שלום مرحبا"),
        ("a </s> b <pad> <unk> ▁ <2de>", "a </s> b <pad> <unk> <2de>"),
    ],
)
def test_round_trip_is_the_normalised_text(tokenizer: Tokenizer, text: str, back: str) -> None:
    """What `nmt_nfkc` changes, row by row; everything else comes back letter by letter."""
    (ids,) = tokenizer.encode_tgt([text])
    assert tokenizer.decode(ids) == back


@pytest.mark.parametrize("text", ["wait…", "ﬁne", "ｆｕｌｌ", "👨\u200d👩\u200d👧 family", "non\xa0breaking"])
def test_identity_normalisation_changes_nothing(identity: Tokenizer, text: str) -> None:
    (ids,) = identity.encode_tgt([text])
    assert identity.decode(ids) == text


# Letters, digits, signs and symbols of all of Unicode: what identity normalisation brings back as it was.
VISIBLE = [c for c in map(chr, range(0x21, 0x20000)) if unicodedata.category(c)[0] in "LNPS" and c != "▁"]


def any_text(rng: random.Random) -> str:
    """Words and control pieces, joined by spaces or by nothing."""
    words = [
        rng.choice(SPECIALS[:5]) if rng.random() < 0.4 else "".join(rng.choices(VISIBLE, k=rng.randint(1, 6)))
        for _ in range(rng.randint(0, 8))
    ]
    return rng.choice([" ", ""]).join(words)


def held(tokenizer: Tokenizer, text: str) -> bool:
    """Whether the ids of a text are in range, with EOS at the end and no other control piece."""
    (ids,) = tokenizer.encode_src([text])
    in_range = all(0 <= piece < tokenizer.src_vocab_size for piece in ids)
    return in_range and ids[-1] == EOS and not CONTROLS & set(ids[:-1])


def test_user_text_never_becomes_a_control_piece(
    tokenizer: Tokenizer, identity: Tokenizer, full: bool, figure: Figure
) -> None:
    """Text in NFC comes back as it was with `identity`, and as SentencePiece's `nmt_nfkc` of it by default."""
    rng = random.Random(5)
    texts = [unicodedata.normalize("NFC", any_text(rng)) for _ in range(5000 if full else 500)]
    normalised = sentencepiece.SentencePieceNormalizer(
        rule_name="nmt_nfkc", add_dummy_prefix=False, escape_whitespaces=False, remove_extra_whitespaces=True
    ).normalize(texts)
    wrong = [text for text in texts if not held(tokenizer, text)]
    for tokens, expected in ((identity, texts), (tokenizer, normalised)):
        back = [tokens.decode(ids) for ids in tokens.encode_tgt(texts)]
        wrong += [text for text, same, found in zip(texts, expected, back, strict=True) if same != found]
    assert sum(map(str.__ne__, normalised, texts)) > len(texts) / 20  # the two do differ
    # The negative control: looked up by name these are control pieces, and a tokenizer without bytes says <unk>.
    assert {identity._tgt.piece_to_id(piece) for piece in SPECIALS[:4]} == CONTROLS
    assert not held(Tokenizer(train(byte_fallback=False)), "漢")
    name = f"tokenizer_round_trip ({tokenizer.src_vocab_size} pieces)"
    figure(name, f"{len(wrong)} wrong of {len(texts)} texts", "0", not wrong)


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(codec="utf-8")))
def test_any_text_at_all_has_no_control_piece(tokenizer: Tokenizer, text: str) -> None:
    assert held(tokenizer, text)


def test_byte_fallback_gives_no_unk_on_an_unseen_alphabet() -> None:
    with_bytes, without = Tokenizer(train()), Tokenizer(train(byte_fallback=False))
    text = [*CYRILLIC[:10], "Привет, мир!", "漢字"]
    assert not any(UNK in ids for ids in with_bytes.encode_src(text))
    assert [with_bytes.decode(ids) for ids in with_bytes.encode_src(text)] == text
    assert all(UNK in ids for ids in without.encode_src(text))  # negative control


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("byte_fallback", [True, False])
def test_vocabulary_limit_is_soft(kind: str, byte_fallback: bool) -> None:
    asked = Tokenizer(train(LATIN[:100], type=kind, vocab_size=32_000, byte_fallback=byte_fallback))
    assert 50 < asked.src_vocab_size < 5_000
    assert asked.src_vocab_size == asked.tgt_vocab_size
    assert max(max(ids) for ids in asked.encode_src(LATIN[:100])) < asked.src_vocab_size


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_vocabulary_has_the_size_asked_where_text_suffices(kind: str) -> None:
    assert Tokenizer(train(type=kind, vocab_size=350)).src_vocab_size == 350


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_training_is_deterministic(kind: str) -> None:
    config = TokenizerConfig(type=kind, vocab_size=400)  # type: ignore[arg-type]
    first, second = (train_sentencepiece(LATIN, config) for _ in range(2))
    assert first == second
    assert first != train_sentencepiece(LATIN[1:], config)


def test_joint_and_separate() -> None:
    latin, cyrillic = train(), train(CYRILLIC, vocab_size=350)
    joint, separate = Tokenizer(latin), Tokenizer(latin, cyrillic)
    assert joint.joint and not separate.joint
    assert joint.encode_src(LATIN[:5]) == joint.encode_tgt(LATIN[:5]) == separate.encode_src(LATIN[:5])
    assert (separate.src_vocab_size, separate.tgt_vocab_size) == (400, 350)
    (ids,) = separate.encode_tgt(CYRILLIC[:1])
    assert separate.decode(ids) == CYRILLIC[0]
    assert separate.tgt_pieces(ids)[0].startswith("▁") and separate.tgt_pieces(ids)[-1] == "</s>"
    assert separate.src_pieces(separate.encode_src(["abc"])[0])[0].startswith("▁")
    assert len({joint.sha256, separate.sha256, Tokenizer(cyrillic).sha256}) == 3
    assert Tokenizer(latin).sha256 == joint.sha256


def test_decode_pieces_by_side() -> None:
    separate = Tokenizer(train(), train(CYRILLIC, vocab_size=350))
    (ids,) = separate.encode_src(["abc def"])
    assert separate.decode_pieces(separate.src_pieces(ids), side="src", ids=False) == "abc def"
    assert separate.decode_pieces([str(piece) for piece in ids], side="src", ids=True) == "abc def"
    with pytest.raises(ValueError, match="invalid literal"):
        separate.decode_pieces(["x"], side="src", ids=True)
    with pytest.raises(IndexError):
        separate.decode_pieces(["99999"], side="tgt", ids=True)


@pytest.mark.parametrize("lines", [[], [""], ["", " "]], ids=repr)
def test_no_text_is_an_error_that_says_so(lines: list[str]) -> None:
    with pytest.raises(DataError, match="no text to train on"):
        train(lines)


def test_vocabulary_smaller_than_the_alphabet_says_what_helps() -> None:
    with pytest.raises(DataError, match=r"bpe model of 16 pieces.*larger tokenizer\.vocab_size") as caught:
        train(vocab_size=16)
    assert ".cc" not in str(caught.value)  # no source location of SentencePiece


@pytest.mark.parametrize("model", [b"junk", b"\x00" * 100, b"{}"], ids=repr)
def test_what_is_no_model(model: bytes) -> None:
    with pytest.raises(BundleError, match="not a SentencePiece model"):
        Tokenizer(model)


def test_model_without_special_pieces_names_them() -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LATIN), model_writer=model, vocab_size=100, bos_id=-1, minloglevel=2
    )
    with pytest.raises(BundleError, match=r"no pad, bos piece.*pad_id=0"):
        Tokenizer(model.getvalue())


def test_models_with_other_special_ids_are_asked_for_theirs() -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LATIN), model_writer=model, vocab_size=100, minloglevel=2,
        unk_id=0, bos_id=1, eos_id=2, pad_id=3,
    )  # fmt: skip
    tokenizer = Tokenizer(model.getvalue())
    assert astuple(tokenizer.special) == (3, 0, 1, 2)
    assert tokenizer.encode_src(["abc"])[0][-1] == 2


def test_from_files(tmp_path: Path) -> None:
    src, tgt = tmp_path / "src.model", tmp_path / "tgt.model"
    src.write_bytes(train())
    tgt.write_bytes(train(CYRILLIC, vocab_size=350))
    assert Tokenizer.from_files(src).joint
    assert Tokenizer.from_files(src, tgt).tgt_vocab_size == 350
    with pytest.raises(ConfigError, match=r"Cannot read the tokenizer .*none\.model"):
        Tokenizer.from_files(tmp_path / "none.model")
    with pytest.raises(ConfigError, match=r"none\.model"):
        Tokenizer.from_files(src, tmp_path / "none.model")


def test_user_symbols_are_one_piece_wherever_they_stand(figure: Figure) -> None:
    symbols = ["<2de>", "<lo>"]
    wrong = 0
    for kind, byte_fallback in product(["bpe", "unigram"], [True, False]):
        tokens = Tokenizer(train(type=kind, byte_fallback=byte_fallback, user_symbols=symbols))
        numbers = [tokens._src.piece_to_id(symbol) for symbol in symbols]
        for text in ("<2de> abc", "abc<2de>def", "<2de>", "<2de><2de> <lo>", "a <2d> b", "<2d e>", "</s><lo>"):
            (ids,) = tokens.encode_src([text])
            found = [ids.count(number) for number in numbers] != [text.count(symbol) for symbol in symbols]
            wrong += found or bool({PAD, BOS, EOS} & set(ids[:-1]))
        assert not set(numbers) & CONTROLS
        tokens.check_tag("<lo>")
        with pytest.raises(ConfigError, match="The tag <s> is no user symbol of the tokenizer: it knows <2de>, <lo>"):
            tokens.check_tag("<s>")
    with pytest.raises(ConfigError, match="it has none"):
        Tokenizer(train()).check_tag("<lo>")
    figure("user_symbols", f"{wrong} of 28 texts wrong", "0", wrong == 0)


def test_long_lines_are_used_up_to_what_sentencepiece_reads() -> None:
    assert [len(training_text(c * 5000).encode()) for c in "aé漢👍"] == [4192, 4192, 4191, 4192]
    assert training_text("aé") == "aé"
    with pytest.raises(DataError, match="no text"):  # the control: SentencePiece leaves the whole line out
        train(["ab cd " * 1000] * 50, vocab_size=30)
    assert Tokenizer(train([training_text("ab cd " * 1000)] * 50, vocab_size=300)).src_vocab_size > 260


def test_sampling_lines_takes_the_memory_of_the_sample(figure: Figure, full: bool) -> None:
    """A corpus that is longer by a lot takes no more; the control is a list."""

    def peak_mb(many: int, size: int) -> float:
        tracemalloc.start()
        sample = Reservoir[str](size, seed=1)
        for number in range(many):
            sample.offer(training_text(f"line {number:9} of a corpus that nobody wrote"))
        assert (len(sample.items), sample.seen) == (size, many)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak / 2**20

    many = 4_000_000 if full else 20_000
    grown = peak_mb(many, 5_000) - peak_mb(6_000, 5_000)
    assert peak_mb(20_000, 20_000) - peak_mb(6_000, 5_000) > 1
    figure("tokenizer_sample_memory", f"{grown:.2f} MB more for {many:,} lines", "<= 0.1", grown <= 0.1)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_user_symbols_are_found_in_the_model(kind: str) -> None:
    symbols = ["<2de>", "é", "x" * 64, "<lo>"]
    options = TokenizerConfig(type=kind, vocab_size=400, user_symbols=symbols)
    model = train_sentencepiece(["the dog sees a cat and a tree"] * 50, options)
    assert user_symbols(model) == symbols == [piece for piece, _, type in piece_table(model) if type == USER_DEFINED]
    assert user_symbols(train_sentencepiece(["the dog sees"] * 50, TokenizerConfig(type=kind, vocab_size=300))) == []
