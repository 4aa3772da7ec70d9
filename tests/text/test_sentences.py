"""Sentences of a line: nothing is lost, spacing is kept, and the boundaries are those of a reader."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.text import sentences
from nmt.text.sentences import between, halves, share_of_single, split

# A bar stands where a sentence begins.
CASES = [
    ("en", "Hello there.  |How are you?\u00a0|Fine!"),
    ("en", "Mr. Smith, e.g., paid $3.50 at 5 p.m. |He left."),
    ("en", "See https://a.org/b.html?q=Is. |It works."),
    ("en", "Mail to j.doe@example.com. |Thanks."),
    ("en", "<b>Bold.</b> Next one."),
    ("en", "Use {0}. |{1} files were found."),
    ("en", 'He said "Stop. Now." and left. |(See below. It is.)'),
    ("en", "1. First item. |2. Second item."),
    ("en", "Really?! ... |Never. |!!! Yes."),
    ("en", "He loves me. |I don't. |OK. |Bye. \U0001f600"),
    ("en", 'He said "It is me. Now." and left.'),
    ("de", "Am 3. Oktober, z. B. im 19. Jahrhundert. |Er liebt mich. |Gut."),
    ("ja", "これは本です。|8月です。|「はい。そう。」と言った。"),
    ("zh-Hans", "你好。|我是学生！|你呢？"),
    ("hi", "यह एक है। |वह दो है।"),
    ("ar", "كيف حالك؟ |أنا بخير."),
    ("no such", "One. |Two."),
    ("en", "  One sentence. "),
    ("en", ""),
    ("en", "... !!! ?"),
]


@pytest.mark.parametrize(("language", "marked"), CASES)
def test_sentences(language: str, marked: str) -> None:
    assert "|".join(text + spacing for text, spacing in split(marked.replace("|", ""), language)) == marked


ODD = "aAbB1.!?;:,\"()[]{}<>/@'“”„«»「」『』。！？…،؟। \u00a0\u3000\u2028\x85\t\n\u200b\u0301İß\ufdfa\U0001f600\ud800"
TEXT = st.one_of(st.text(st.sampled_from(ODD), max_size=60), st.text(st.characters(), max_size=60))
LANGUAGES = st.sampled_from(
    ["en", "de", "fr", "ja", "zh", "ar", "hi", "th", "am", "el", "xx", "", "de-AT", "\U0001f600"]
)


def test_nothing_is_lost(full: bool, figure: Callable[..., None]) -> None:
    count = 0

    @settings(max_examples=5_000 if full else 300, deadline=None, database=None, derandomize=True)
    @given(TEXT, LANGUAGES)
    def check(line: str, language: str) -> None:
        nonlocal count
        parts = split(line, language)
        assert "".join(text + spacing for text, spacing in parts) == line
        if len(parts) > 1:
            assert all(any(char.isalnum() for char in text) for text, _ in parts)
            assert all(spacing == "" or spacing.isspace() for _, spacing in parts)
        cut = halves(line, language)
        if cut is not None:
            assert "".join(cut) == line and cut[0].strip() and cut[2].strip()
            assert cut[1] == "" or cut[1].isspace()
        count += 1

    check()
    asked = 5_000 if full else 300
    figure("split_lossless", f"{count} of {count} odd lines", f">= {asked}", count >= asked)


def test_a_panic_of_the_library_splits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert split("A\u00a0. B", "pt") == [("A\u00a0. B", "")]  # at which it panics

    class PanicException(BaseException):
        """As pyo3 names it."""

    def panic(*_: object) -> object:
        raise PanicException

    monkeypatch.setattr(sentences.sentencex, "get_sentence_boundaries", panic)
    assert split("One. Two.", "en") == [("One. Two.", "")]


def test_long_lines_are_looked_at_in_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's time grows with the square of what it is given."""
    real, seen = sentences.sentencex.get_sentence_boundaries, []

    def noted(language: str, text: str) -> object:
        seen.append(len(text))
        return real(language, text)

    monkeypatch.setattr(sentences.sentencex, "get_sentence_boundaries", noted)
    rng = random.Random(1)
    texts = [" ".join(["Word", *rng.choices(["dog", "cat", "sees"], k=rng.randint(1, 60))]) + "." for _ in range(300)]
    assert [text for text, _ in split(" ".join(texts), "en")] == texts
    assert len(split("「あ。" * 20_000, "ja")) == 20_000 and len(split("word " * 13_000, "en")) == 1
    assert max(seen) <= 4000 and sum(seen) < 4 * (len(" ".join(texts)) + 60_000 + 65_000)


def test_halves_prefer_sentences_then_clauses_then_spaces() -> None:
    assert halves("one two. Three four five six", "en") == ("one two.", " ", "Three four five six")
    assert halves("one two three; four five six seven", "en") == ("one two three;", " ", "four five six seven")
    assert halves("one two three four (five six)", "en") == ("one two three four", " ", "(five six)")
    assert halves("one two three four", "en") == ("one two", " ", "three four")
    assert halves("一二三，四五六七", "zh") == ("一二三，", "", "四五六七")
    assert halves("a, bcdefghijklmnopqrstuvwxyz", "en") == ("a,", " ", "bcdefghijklmnopqrstuvwxyz")
    assert halves("abcdefgh", "en") is None and halves(" abc ", "en") is None


@pytest.mark.parametrize(
    ("spacing", "src", "tgt", "expected"),
    [
        (" ", "en", "de", " "),
        ("  ", "en", "de", "  "),
        ("\u00a0", "en", "fr", "\u00a0"),
        ("", "en", "de", ""),  # a word that was cut
        ("", "ja", "en", " "),
        ("\u3000", "ja", "en", " "),
        ("", "th", "en", " "),
        (" ", "en", "ja", ""),
        ("  ", "en", "zh-Hans", ""),
        ("", "ja", "zh", ""),
        (" ", "en", "th", " "),  # Thai has spaces between sentences
        ("", "zh", "ko", " "),
    ],
)
def test_spacing(spacing: str, src: str, tgt: str, expected: str) -> None:
    assert between(spacing, src, tgt) == expected


def test_the_share_of_single_sentences() -> None:
    assert share_of_single(["One.", "One. Two.", "three", ""], "en") == 0.75
    assert share_of_single([], "en") == 1.0


REAL = [
    ("en", "tatoeba/test.en", " "),
    ("de", "tatoeba/test.de", " "),
    ("en", "wmt_newstest/newstest2014.en", " "),
    ("de", "wmt_newstest/newstest2014.de", " "),
    ("ja", "tanaka_enja/test.ja", ""),
    ("ja", "flores101/devtest.ja", ""),
]


@pytest.mark.real_data
def test_boundaries_of_real_text(real_data: Path, full: bool, figure: Callable[..., None]) -> None:
    """Two to five lines on one. Lines of several sentences, which all these corpora have, count as mistakes."""
    shown, worst = [], 1.0
    for language, name, spacing in REAL:
        lines = [line.strip() for line in (real_data / name).read_text("utf-8").split("\n") if line.strip()]
        rng = random.Random(1)
        right = proposed = there = 0
        for _ in range(200 if full else 60):
            chosen = [spacing + line for line in rng.sample(lines, rng.randint(2, 5))]
            expected = _ends(chosen)
            found = _ends([text + after for text, after in split("".join(chosen), language)])
            # A boundary is where the next sentence begins, whichever side the white space is counted to.
            line = "".join(chosen)
            starts = {len(line) - len(line[end:].lstrip()) for end in expected}
            right, proposed, there = right + len(starts & found), proposed + len(found), there + len(starts)
        shown.append(f"{name.split('/')[0]}-{language} {right / proposed:.3f}/{right / there:.3f}")
        worst = min(worst, right / there)
    figure("split_boundaries_found", "precision/recall: " + ", ".join(shown), "recall >= 0.90", worst >= 0.90)


def _ends(texts: list[str]) -> set[int]:
    """Where each but the last one ends, when they stand end to end."""
    lengths = [len(text) for text in texts]
    return {sum(lengths[:number]) for number in range(1, len(texts))}
