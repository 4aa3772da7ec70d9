"""The built-in toy corpus: an English-German grammar with gold word alignments, deterministic from a seed.

The words are in ``toy_lexicon``, the realisation rules in ``toy_grammar``, the drawing of sentences in
``toy_sampler``; here they are sorted into splits and written. The split ``test-new-structures`` joins
constructions that the others show only apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from nmt.data.toy_grammar import (
    Clause,
    Name,
    Nominal,
    NounPhrase,
    Pronoun,
    Question,
    Sentence,
    align,
    realise,
)
from nmt.data.toy_lexicon import (
    ADJECTIVES,
    ADVERBS,
    BE,
    COORDINATORS,
    FUTURE,
    MODALS,
    NAMES,
    NOUNS,
    NUMERALS,
    OTHER_LEXEMES,
    POSSESSIVES,
    PREPOSITIONS,
    PRONOUNS,
    SUBORDINATORS,
    THAT_VERBS,
    WH_WORDS,
)
from nmt.data.toy_sampler import ALL_VERBS, Sampler

SPLIT_SIZES = {"train": 20_000, "valid": 500, "test": 500, "test-new-structures": 500}
MIN_TOKENS, MAX_TOKENS = 4, 14

# Each name is the two constructions, joined with "+", that no other split shows in one sentence.
HELD_OUT: dict[str, str] = {
    "kein+verb-final": "kein inside a verb-final subordinate clause: ..., dass er keinen Hund sieht",
    "modal+separable": "a separable verb as the infinitive under a modal: Er muss das Zimmer aufräumen",
    "fronted+kein": "kein in a clause with a fronted adverbial: Heute sieht er keinen Hund",
    "modal+wh-question": "a modal in a wh-question: Warum muss Anna warten?",
    "dative-pp+numeral": "a numeral inside a dative prepositional phrase: mit drei kleinen Hunden",
}


@dataclass(frozen=True)
class ToyPair:
    """A sentence pair, its gold alignment over white-space tokens (0-based) and its constructions' names."""

    src: str
    tgt: str
    alignment: tuple[tuple[int, int], ...]
    constructions: frozenset[str]


# --- constructions ---------------------------------------------------------------------------------------

_CLAUSE_TESTS: dict[str, Callable[[Clause], bool]] = {
    "statement": lambda c: c.order == "statement",
    "yes-no-question": lambda c: c.order == "question" and not _asks_word(c),
    "wh-question": lambda c: _asks_word(c),
    "verb-final": lambda c: c.order == "subordinate",
    "fronted": lambda c: bool(c.front),
    "kein": lambda c: c.kein,
    "nicht": lambda c: c.negated and not c.kein,
    "separable": lambda c: bool(c.verb.prefix),
    "modal": lambda c: c.aux is not None and not c.aux.future,
    "future": lambda c: c.aux is not None and c.aux.future,
    "copula": lambda c: c.verb.kind == "be",
    "dative-verb": lambda c: c.verb.kind == "dat",
    "ditransitive": lambda c: c.verb.kind == "dit",
    "dative-pp": lambda c: c.pp is not None and c.pp.preposition.case == "dat",
    "accusative-pp": lambda c: c.pp is not None and c.pp.preposition.case == "acc",
    "adverb": lambda c: c.adverb is not None,
}
_PHRASE_TESTS: dict[str, Callable[[NounPhrase], bool]] = {
    "name": lambda p: isinstance(p, Name),
    "pronoun": lambda p: isinstance(p, Pronoun),
    "numeral": lambda p: isinstance(p, Nominal) and p.numeral,
    "possessive": lambda p: isinstance(p, Nominal) and p.determiner in POSSESSIVES,
    "plural": lambda p: isinstance(p, Nominal) and p.plural,
    "adjective": lambda p: isinstance(p, Nominal) and p.adjective is not None,
}
_PARTS: dict[str, frozenset[str]] = {name: frozenset(name.split("+")) for name in HELD_OUT}


def _asks_word(clause: Clause) -> bool:
    return bool(clause.wh) or clause.asks_object or isinstance(clause.subject, Question)


def _phrases(clause: Clause) -> list[NounPhrase]:
    phrases = (clause.subject, clause.obj, clause.recipient, clause.pp.phrase if clause.pp else None)
    return [phrase for phrase in phrases if phrase is not None]


def clause_constructions(clause: Clause) -> frozenset[str]:
    """The names of the constructions in one clause."""
    names = {name for name, test in _CLAUSE_TESTS.items() if test(clause)}
    phrases = _phrases(clause)
    return frozenset(names | {name for name, test in _PHRASE_TESTS.items() if any(map(test, phrases))})


def sentence_constructions(sentence: Sentence) -> frozenset[str]:
    """The names of the constructions in a sentence's clauses, and of how they are joined."""
    names = frozenset[str]().union(*(clause_constructions(clause) for clause in sentence.clauses))
    if sentence.second_first:
        names |= {"fronted-clause"}
    return names | {"coordination"} if sentence.conjunction in COORDINATORS else names


def _joint(clause: Clause, name: str) -> bool:
    """Whether this one clause itself joins the two constructions of a held-out combination."""
    if name == "dative-pp+numeral":
        pp = clause.pp
        return pp is not None and pp.preposition.case == "dat" and _PHRASE_TESTS["numeral"](pp.phrase)
    return clause_constructions(clause) >= _PARTS[name]


def _repeats(sentence: Sentence) -> bool:
    """Whether a name or noun occurs twice."""
    words: list[str] = []
    for clause in sentence.clauses:
        for phrase in _phrases(clause):
            if isinstance(phrase, Name):
                words += phrase.names
            elif isinstance(phrase, Nominal):
                words.append(phrase.noun.en)
    return len(words) != len(set(words))


def _pair(sentence: Sentence, constructions: frozenset[str]) -> ToyPair:
    english, german = realise(sentence)
    src, tgt = (" ".join(word for word, _ in tokens) for tokens in (english, german))
    return ToyPair(src, tgt, align(english, german), constructions)


# --- splits ----------------------------------------------------------------------------------------------


def _draw_pairs(rng: Random) -> tuple[list[ToyPair], dict[str, list[ToyPair]]]:
    """Distinct pairs without any held-out combination, and more than enough with exactly one of each."""
    sampler = Sampler(rng)
    usual_size = sum(SPLIT_SIZES.values()) - SPLIT_SIZES["test-new-structures"]
    wanted = 2 * SPLIT_SIZES["test-new-structures"] // len(HELD_OUT)
    usual: list[ToyPair] = []
    held_out: dict[str, list[ToyPair]] = {name: [] for name in HELD_OUT}
    seen: set[str] = set()
    while len(usual) < usual_size or any(len(pairs) < wanted for pairs in held_out.values()):
        sentence = sampler.sentence()
        if _repeats(sentence):
            continue
        names = sentence_constructions(sentence)
        combinations = [name for name, parts in _PARTS.items() if parts <= names]
        if len(combinations) > 1:
            continue
        pairs, size = (held_out[combinations[0]], wanted) if combinations else (usual, usual_size)
        if len(pairs) >= size or not all(
            any(_joint(clause, name) for clause in sentence.clauses) for name in combinations
        ):
            continue
        pair = _pair(sentence, names)
        if pair.src not in seen and MIN_TOKENS <= len(pair.src.split()) <= MAX_TOKENS:
            seen.add(pair.src)
            pairs.append(pair)
    return usual, held_out


def _known(pairs: list[ToyPair]) -> Callable[[ToyPair], bool]:
    """A test for pairs all of whose tokens and lengths, on both sides, occur in ``pairs``."""
    sides = [[text.split() for text in texts] for texts in zip(*((p.src, p.tgt) for p in pairs), strict=True)]
    words = [{word for line in lines for word in line} for lines in sides]
    lengths = [{len(line) for line in lines} for lines in sides]

    def test(pair: ToyPair) -> bool:
        lines = (pair.src.split(), pair.tgt.split())
        return all(words[k].issuperset(line) and len(line) in lengths[k] for k, line in enumerate(lines))

    return test


def generate(seed: int = 1) -> dict[str, list[ToyPair]]:
    """Draw the corpus: splits ``train``, ``valid``, ``test`` and ``test-new-structures``."""
    rng = Random(seed)
    usual, held_out = _draw_pairs(rng)
    splits: dict[str, list[ToyPair]] = {}
    for name in ("train", "valid", "test"):
        splits[name], usual = usual[: SPLIT_SIZES[name]], usual[SPLIT_SIZES[name] :]
    known = _known(splits["train"])
    share = SPLIT_SIZES["test-new-structures"] // len(HELD_OUT)
    new: list[ToyPair] = []
    for pairs in held_out.values():
        new += [pair for pair in pairs if known(pair)][:share]
    rng.shuffle(new)
    if len(new) != SPLIT_SIZES["test-new-structures"]:
        raise AssertionError(f"the toy grammar gave {len(new)} pairs of new structures")
    splits["test-new-structures"] = new
    return splits


def write_toy(folder: Path, seed: int = 1) -> dict[str, int]:
    """Write ``<split>.en``, ``.de`` and ``.align`` for each split; return the numbers of pairs."""
    folder.mkdir(parents=True, exist_ok=True)
    splits = generate(seed)
    for name, pairs in splits.items():
        columns = {
            "en": [pair.src for pair in pairs],
            "de": [pair.tgt for pair in pairs],
            "align": [" ".join(f"{i}-{j}" for i, j in pair.alignment) for pair in pairs],
        }
        for suffix, lines in columns.items():
            text = "".join(line + "\n" for line in lines)
            (folder / f"{name}.{suffix}").write_bytes(text.encode("utf-8"))
    return {name: len(pairs) for name, pairs in splits.items()}


def lexemes() -> set[str]:
    """The English lexemes: one lemma for each word (or particle verb, or set phrase) of the lexicon."""
    words = {noun.en for noun in NOUNS} | {adjective.en for adjective in ADJECTIVES}
    words |= {verb.en.replace("_", " ") for verb in (*ALL_VERBS, BE, *THAT_VERBS)}
    words |= {auxiliary.en for auxiliary in (*MODALS, FUTURE)} | {adverb.en for adverb in ADVERBS}
    words |= {preposition.en for preposition in PREPOSITIONS} | {forms.en_subject for forms in PRONOUNS}
    for table in (NAMES, NUMERALS, POSSESSIVES, WH_WORDS, SUBORDINATORS, COORDINATORS, OTHER_LEXEMES):
        words.update(table)
    return words
