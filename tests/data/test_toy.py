import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from nmt.data import toy
from nmt.data.toy import HELD_OUT, ToyPair, generate, lexemes, write_toy
from nmt.data.toy_grammar import (
    Clause,
    Name,
    Nominal,
    NounPhrase,
    Prepositional,
    Pronoun,
    Question,
    Sentence,
    align,
    german_adjective,
    german_determiner,
    german_noun,
    realise,
)
from nmt.data.toy_lexicon import (
    ADJECTIVES,
    ADVERBS,
    BE,
    FUTURE,
    KNOW,
    MODALS,
    NAMES,
    NOUNS,
    PREPOSITIONS,
    PRONOUNS,
    SUBORDINATORS,
    VERBS,
    Adverb,
    Auxiliary,
    Verb,
)

NOUN = {noun.en: noun for noun in NOUNS}
ADJECTIVE = {adjective.en: adjective for adjective in ADJECTIVES}
VERB = {verb.en: verb for verbs in VERBS.values() for verb in verbs} | {"be": BE, "know": KNOW}
MODAL = {modal.en: modal for modal in MODALS}
ADVERB = {adverb.en: adverb for adverb in ADVERBS}
PREPOSITION = {preposition.en: preposition for preposition in PREPOSITIONS}
PRONOUN = {forms.en_subject: Pronoun(forms) for forms in PRONOUNS}


def np(text: str) -> NounPhrase:
    """``np("a small dog")``, ``np("two +dog")`` (``+``: plural), ``np("he")``, ``np("Anna Tom")``."""
    words = text.split()
    if text in PRONOUN:
        return PRONOUN[text]
    if words[0][0].isupper():
        return Name(tuple(words))
    plural, noun = words[-1].startswith("+"), NOUN[words[-1].lstrip("+")]
    adjective = ADJECTIVE[words[-2]] if len(words) > 1 and words[-2] in ADJECTIVE else None
    determiner = words[0] if len(words) - (adjective is not None) > 1 else ""
    return Nominal(noun, determiner, plural, adjective)


def pp(preposition: str, text: str) -> Prepositional:
    phrase = np(text)
    assert isinstance(phrase, Nominal | Name)
    return Prepositional(PREPOSITION[preposition], phrase)


def clause(
    subject: str,
    verb: str,
    obj: str = "",
    to: str = "",
    order: str = "statement",
    aux: Auxiliary | None = None,
    adverb: Adverb | None = None,
    **rest: object,
) -> Clause:
    def phrase(text: str) -> NounPhrase | None:
        return Question(text) if text in ("who", "what") else np(text) if text else None

    subject_phrase = phrase(subject)
    assert subject_phrase is not None
    found: Verb = VERB[verb]
    return Clause(
        subject_phrase,
        found,
        order,
        phrase(obj),
        phrase(to),
        aux=aux,
        adverb=adverb,
        **rest,  # type: ignore[arg-type]
    )


CAN, MUST, WANT = MODAL["can"], MODAL["must"], MODAL["want"]
SUB, ASK = "subordinate", "question"
EXPECTED: list[tuple[Sentence, str, str]] = [
    (
        Sentence(clause("the small dog", "see", "a cat")),
        "The small dog sees a cat.",
        "Der kleine Hund sieht eine Katze.",
    ),
    (
        Sentence(clause("a old woman", "have", "a expensive umbrella")),
        "An old woman has an expensive umbrella.",
        "Eine alte Frau hat einen teuren Regenschirm.",
    ),
    (
        Sentence(clause("two small +child", "eat", "green +apple")),
        "Two small children eat green apples.",
        "Zwei kleine Kinder essen grüne Äpfel.",
    ),
    (
        Sentence(clause("she", "help", "my old +friend")),
        "She helps my old friends.",
        "Sie hilft meinen alten Freunden.",
    ),
    (
        Sentence(clause("he", "give", "a new ball", "the child")),
        "He gives the child a new ball.",
        "Er gibt dem Kind einen neuen Ball.",
    ),
    (
        Sentence(clause("I", "see", "the boy", negated=True)),
        "I do not see the boy.",
        "Ich sehe den Jungen nicht.",
    ),
    (
        Sentence(clause("he", "have", "a small car", negated=True)),
        "He does not have a small car.",
        "Er hat kein kleines Auto.",
    ),
    (
        Sentence(clause("we", "buy", "red +apple", negated=True)),
        "We do not buy any red apples.",
        "Wir kaufen keine roten Äpfel.",
    ),
    (
        Sentence(clause("Anna", "tidy_up", "the room")),
        "Anna tidies up the room.",
        "Anna räumt das Zimmer auf.",
    ),
    (
        Sentence(clause("Anna", "pick_up", "he", negated=True)),
        "Anna does not pick him up.",
        "Anna holt ihn nicht ab.",
    ),
    (
        Sentence(clause("Anna", "tidy_up", "the room", aux=MUST)),
        "Anna must tidy up the room.",
        "Anna muss das Zimmer aufräumen.",
    ),
    (
        Sentence(clause("they", "fall_asleep", aux=FUTURE, adverb=ADVERB["soon"])),
        "They will fall asleep soon.",
        "Sie werden bald einschlafen.",
    ),
    (
        Sentence(clause("he", "read", "a book", aux=CAN, negated=True)),
        "He cannot read a book.",
        "Er kann kein Buch lesen.",
    ),
    (
        Sentence(clause("the king", "sing", aux=WANT, negated=True)),
        "The king does not want to sing.",
        "Der König will nicht singen.",
    ),
    (
        Sentence(clause("the man", "read", "a book", adverb=ADVERB["today"], front="adverb")),
        "Today the man reads a book.",
        "Heute liest der Mann ein Buch.",
    ),
    (
        Sentence(clause("she", "sleep", pp=pp("in", "the garden"), front="pp")),
        "In the garden she sleeps.",
        "Im Garten schläft sie.",
    ),
    (
        Sentence(clause("the child", "play", pp=pp("with", "a black cat"), negated=True)),
        "The child does not play with a black cat.",
        "Das Kind spielt nicht mit einer schwarzen Katze.",
    ),
    (
        Sentence(clause("Paul", "cook", pp=pp("for", "three +guest"))),
        "Paul cooks for three guests.",
        "Paul kocht für drei Gäste.",
    ),
    (
        Sentence(clause("Paul", "dance", pp=pp("with", "three young +woman"))),
        "Paul dances with three young women.",
        "Paul tanzt mit drei jungen Frauen.",
    ),
    (
        Sentence(clause("the man", "see", "the dog", order=ASK)),
        "Does the man see the dog?",
        "Sieht der Mann den Hund?",
    ),
    (
        Sentence(clause("he", "call", "she", order=ASK, aux=CAN, negated=True)),
        "Can he not call her?",
        "Kann er sie nicht anrufen?",
    ),
    (
        Sentence(clause("who", "close", "the door", order=ASK)),
        "Who closes the door?",
        "Wer macht die Tür zu?",
    ),
    (
        Sentence(clause("Anna", "look_for", "what", order=ASK)),
        "What does Anna look for?",
        "Was sucht Anna?",
    ),
    (
        Sentence(clause("we", "be", order=ASK, wh="why", predicate=ADJECTIVE["tired"], very=True)),
        "Why are we very tired?",
        "Warum sind wir sehr müde?",
    ),
    (
        Sentence(clause("I", "know"), "that", clause("this boy", "tidy_up", "his room", order=SUB, negated=True)),
        "I know that this boy does not tidy up his room.",
        "Ich weiß, dass dieser Junge sein Zimmer nicht aufräumt.",
    ),
    (
        Sentence(clause("Tom", "ask"), "whether", clause("they", "have", "a dog", order=SUB, negated=True)),
        "Tom asks whether they do not have a dog.",
        "Tom fragt, ob sie keinen Hund haben.",
    ),
    (
        Sentence(clause("Anna Tom", "wait"), "because", clause("she", "see", "the bus", order=SUB, aux=CAN), True),
        "Because she can see the bus, Anna and Tom wait.",
        "Weil sie den Bus sehen kann, warten Anna und Tom.",
    ),
    (
        Sentence(clause("I", "be", predicate=ADJECTIVE["old"]), "but", clause("he", "be", pp=pp("in", "a city"))),
        "I am old, but he is in a city.",
        "Ich bin alt, aber er ist in einer Stadt.",
    ),
    (
        Sentence(clause("he", "read", "the book", adverb=ADVERB["often"])),
        "He often reads the book.",
        "Er liest das Buch oft.",
    ),
]


@pytest.fixture(scope="module")
def corpus() -> dict[str, list[ToyPair]]:
    return generate(1)


@pytest.fixture(scope="module")
def other() -> dict[str, list[ToyPair]]:
    return generate(2)


@pytest.fixture(scope="module")
def everything(corpus: dict[str, list[ToyPair]]) -> list[ToyPair]:
    return [pair for pairs in corpus.values() for pair in pairs]


@pytest.mark.parametrize(("sentence", "english", "german"), EXPECTED)
def test_the_grammar_realises_the_expected_pair(sentence: Sentence, english: str, german: str) -> None:
    source, target = realise(sentence)
    assert " ".join(word for word, _ in source) == english
    assert " ".join(word for word, _ in target) == german


@pytest.mark.parametrize(
    ("sentence", "alignment"),
    [
        (Sentence(clause("the small dog", "see", "a cat")), "0-0 1-1 2-2 3-3 4-4 5-5"),
        # He(0) does(1) not(2) have(3) a(4) car(5) / Er hat kein Auto
        (Sentence(clause("he", "have", "a car", negated=True)), "0-0 1-1 2-2 3-1 4-2 5-3"),
        # Anna tidies up the room / Anna räumt das Zimmer auf
        (Sentence(clause("Anna", "tidy_up", "the room")), "0-0 1-1 1-4 2-1 2-4 3-2 4-3"),
        # In the garden she sleeps / Im Garten schläft sie
        (Sentence(clause("she", "sleep", pp=pp("in", "the garden"), front="pp")), "0-0 1-0 2-1 3-3 4-2"),
        # She sleeps tonight / Sie schläft heute Abend
        (Sentence(clause("she", "sleep", adverb=ADVERB["tonight"])), "0-0 1-1 2-2 2-3"),
        # I sleep because he can sing / Ich schlafe, weil er singen kann
        (
            Sentence(clause("I", "sleep"), "because", clause("he", "sing", order=SUB, aux=CAN)),
            "0-0 1-1 2-2 3-3 4-5 5-4",
        ),
    ],
)
def test_alignment_of_known_trees(sentence: Sentence, alignment: str) -> None:
    assert " ".join(f"{i}-{j}" for i, j in align(*realise(sentence))) == alignment


@pytest.mark.parametrize(
    ("determiner", "adjective", "noun", "case", "plural", "phrase"),
    [
        ("the", "old", "man", "nom", False, "der alte Mann"),
        ("the", "old", "man", "acc", False, "den alten Mann"),
        ("the", "old", "man", "dat", False, "dem alten Mann"),
        ("a", "old", "man", "nom", False, "ein alter Mann"),
        ("a", "old", "house", "acc", False, "ein altes Haus"),
        ("a", "old", "cat", "dat", False, "einer alten Katze"),
        ("our", "old", "cat", "acc", False, "unsere alte Katze"),
        ("this", "expensive", "car", "dat", False, "diesem teuren Auto"),
        ("kein", "small", "dog", "acc", True, "keine kleinen Hunde"),
        ("two", "small", "dog", "acc", True, "zwei kleine Hunde"),
        ("two", "small", "dog", "dat", True, "zwei kleinen Hunden"),
        ("my", "tired", "child", "nom", True, "meine müden Kinder"),
        ("the", "big", "car", "dat", True, "den großen Autos"),
        ("the", "young", "student", "acc", False, "den jungen Studenten"),
        ("the", "young", "boy", "nom", True, "die jungen Jungen"),
    ],
)
def test_agreement(determiner: str, adjective: str, noun: str, case: str, plural: bool, phrase: str) -> None:
    gender = "pl" if plural else NOUN[noun].gender
    words = (
        german_determiner(determiner, case, gender),
        german_adjective(ADJECTIVE[adjective], determiner, case, gender),
        german_noun(NOUN[noun], case, plural),
    )
    assert " ".join(words) == phrase


def test_sizes(corpus: dict[str, list[ToyPair]]) -> None:
    assert {name: len(pairs) for name, pairs in corpus.items()} == {
        "train": 20_000,
        "valid": 500,
        "test": 500,
        "test-new-structures": 500,
    }


@pytest.mark.slow
def test_another_seed_gives_another_corpus(corpus: dict[str, list[ToyPair]], other: dict[str, list[ToyPair]]) -> None:
    assert {name: len(pairs) for name, pairs in other.items()} == toy.SPLIT_SIZES
    assert [pair.src for pair in other["test"]] != [pair.src for pair in corpus["test"]]
    assert sum(a == b for a, b in zip(other["train"], corpus["train"], strict=True)) < 100


def test_no_sentence_occurs_twice_in_all_splits(everything: list[ToyPair]) -> None:
    assert len({pair.src for pair in everything}) == len(everything) == 21_500


def test_one_german_for_each_english_over_seeds(everything: list[ToyPair], other: dict[str, list[ToyPair]]) -> None:
    german = {pair.src: pair.tgt for pair in everything}
    again = [pair for pairs in other.values() for pair in pairs if pair.src in german]
    assert len(again) > 100
    assert all(german[pair.src] == pair.tgt for pair in again)


def test_held_out_combinations_occur_only_in_the_new_structures(corpus: dict[str, list[ToyPair]]) -> None:
    combinations = [frozenset(name.split("+")) for name in HELD_OUT]
    assert 3 <= len(combinations) <= 5
    for name in ("train", "valid", "test"):
        assert not any(parts <= pair.constructions for pair in corpus[name] for parts in combinations)
    found = Counter(
        parts for pair in corpus["test-new-structures"] for parts in combinations if parts <= pair.constructions
    )
    assert found == {parts: 100 for parts in combinations}


def test_train_shows_each_part_of_the_held_out_combinations_often(corpus: dict[str, list[ToyPair]]) -> None:
    counts = Counter(name for pair in corpus["train"] for name in pair.constructions)
    for name in HELD_OUT:
        for part in name.split("+"):
            assert counts[part] >= 1000, part


def test_held_out_combinations_show_in_the_text(corpus: dict[str, list[ToyPair]]) -> None:
    # Judged from the German text alone, not from the tree.
    conjunctions = set(SUBORDINATORS.values())
    modals = {form for modal in MODALS for form in (modal.de_1sg, modal.de_3sg, modal.de_plural)}
    for name in ("train", "valid", "test"):
        for pair in corpus[name]:
            words = pair.tgt.lower().replace(",", "").strip(".?").split()
            kein = any(word.startswith("kein") for word in words)
            assert not (kein and conjunctions & set(words)), pair
            assert not (modals & set(words) and words[0] in ("warum", "wo", "wann", "was", "wer")), pair
            assert not (kein and words[0] in ("heute", "jetzt", "am", "im", "jeden", "bald", "morgen")), pair


def test_new_structures_use_only_words_and_lengths_of_train(corpus: dict[str, list[ToyPair]]) -> None:
    for side in ("src", "tgt"):
        lines = [getattr(pair, side).split() for pair in corpus["train"]]
        words = {word for line in lines for word in line}
        lengths = {len(line) for line in lines}
        for pair in corpus["test-new-structures"]:
            line = getattr(pair, side).split()
            assert words.issuperset(line) and len(line) in lengths


def test_sentences_are_short(everything: list[ToyPair]) -> None:
    lengths = [len(pair.src.split()) for pair in everything]
    assert min(lengths) >= 4 and max(lengths) <= 14
    assert 7 <= sum(lengths) / len(lengths) <= 9


def test_alignment_is_valid_and_covers_both_sides(everything: list[ToyPair]) -> None:
    for pair in everything:
        source, target = len(pair.src.split()), len(pair.tgt.split())
        assert {i for i, _ in pair.alignment} == set(range(source)), pair
        assert {j for _, j in pair.alignment} == set(range(target)), pair
        assert list(pair.alignment) == sorted(set(pair.alignment))


def test_names_and_numerals_align_with_their_translations(everything: list[ToyPair]) -> None:
    checked = 0
    wanted = {"Anna": "Anna", "Peter": "Peter", "seven": "sieben", "because": "weil"}
    for pair in everything:
        source, target = ([w.strip(".,?") for w in text.split()] for text in (pair.src, pair.tgt))
        for i, word in enumerate(source):
            if word in wanted and source.count(word) == target.count(wanted[word]) == 1:
                assert (i, target.index(wanted[word])) in pair.alignment, pair
                checked += 1
    assert checked > 1000


def test_every_lexeme_is_frequent_in_train(corpus: dict[str, list[ToyPair]]) -> None:
    text = "\n".join(" " + pair.src.lower().strip(".?").replace(",", "") + " " for pair in corpus["train"])
    counts = Counter(text.split())
    for noun in NOUNS:
        assert counts[noun.en] + counts[noun.en_plural] >= 40, noun
    for adjective in ADJECTIVES:
        assert counts[adjective.en] >= 40, adjective
    for verb in VERB.values():
        base, *particle = verb.en_words
        forms = "am|is|are" if verb.en == "be" else f"{base}|{verb.en_3sg}"
        rest = " ((me|him|her|us|them) )?" + " ".join(particle) if particle else ""
        assert len(re.findall(f" ({forms}){rest} ", text)) >= 40, verb
    for name in NAMES:
        assert counts[name.lower()] >= 40, name
    for adverb in ADVERBS:
        assert text.count(f" {adverb.en.lower()} ") >= 40, adverb


def test_lexemes(everything: list[ToyPair]) -> None:
    words = lexemes()
    assert 250 <= len(words) <= 330
    assert {"dog", "tidy up", "in front of", "every day", "because", "kitchen", "be", "want"} <= words
    english = {noun.en for noun in NOUNS}
    assert len(english) == len(NOUNS) and len({noun.de for noun in NOUNS}) == len(NOUNS)
    verbs = [verb for group in VERBS.values() for verb in group]
    assert len({verb.en for verb in verbs}) == len({verb.infinitive for verb in verbs}) == len(verbs)


def test_punctuation_and_capitals(everything: list[ToyPair]) -> None:
    for pair in everything:
        for text in (pair.src, pair.tgt):
            assert text[0].isupper() and text[-1] in ".?" and "  " not in text
            assert not any(mark in text[:-1] for mark in ".?")
        assert pair.src[-1] == pair.tgt[-1]


def test_verb_final_clauses_end_in_a_finite_verb_after_a_comma(corpus: dict[str, list[ToyPair]]) -> None:
    finite = {BE.de_1sg, BE.de_3sg, "sind"}
    for verb in [verb for verbs in VERBS.values() for verb in verbs]:
        finite |= {verb.prefix + form for form in (verb.de_1sg, verb.de_3sg, verb.de_stem_inf)}
    for aux in (*MODALS, FUTURE):
        finite |= {aux.de_1sg, aux.de_3sg, aux.de_plural}
    subordinate = [pair for pair in corpus["train"] if "verb-final" in pair.constructions]
    assert len(subordinate) > 2000
    for pair in subordinate:
        halves = pair.tgt.strip(".?").split(", ")
        assert len(halves) == 2, pair
        half = halves[0] if "fronted-clause" in pair.constructions else halves[1]
        assert half.split()[0].lower() in SUBORDINATORS.values(), pair
        assert half.split()[-1] in finite, pair


def test_a_and_an(everything: list[ToyPair]) -> None:
    for pair in everything:
        words = pair.src.lower().split()
        for article, following in pairwise(words):
            if article in ("a", "an"):
                assert (article == "an") == (following[0] in "aeiou"), pair


def test_write_toy_writes_the_same_corpus_again(tmp_path: Path, corpus: dict[str, list[ToyPair]]) -> None:
    counts = write_toy(tmp_path / "new", seed=1)
    assert counts == toy.SPLIT_SIZES
    for name, pairs in corpus.items():
        data = (tmp_path / "new" / f"{name}.de").read_bytes()
        assert b"\r" not in data and data.endswith(b"\n")
        assert data.decode("utf-8").splitlines() == [pair.tgt for pair in pairs]
        assert (tmp_path / "new" / f"{name}.en").read_text("utf-8").splitlines() == [pair.src for pair in pairs]
        lines = (tmp_path / "new" / f"{name}.align").read_text("utf-8").splitlines()
        assert lines == [" ".join(f"{i}-{j}" for i, j in pair.alignment) for pair in pairs]
