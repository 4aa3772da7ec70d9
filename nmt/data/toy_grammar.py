"""The toy corpus' grammar: feature-carrying phrase trees realised in English and in German.

Each realised token carries the ids of the meaning parts it expresses; tokens of the two languages that share
an id are aligned, so the gold word alignment comes from the tree itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nmt.data.toy_lexicon import (
    CONTRACTIONS,
    COORDINATORS,
    NUMERALS,
    POSSESSIVES,
    SUBORDINATORS,
    WH_WORDS,
    Adjective,
    Adverb,
    Auxiliary,
    Noun,
    Preposition,
    PronounForms,
    Verb,
)

Token = tuple[str, tuple[str, ...]]
Tokens = list[Token]

_DEFINITE = {
    "nom": {"m": "der", "f": "die", "n": "das", "pl": "die"},
    "acc": {"m": "den", "f": "die", "n": "das", "pl": "die"},
    "dat": {"m": "dem", "f": "der", "n": "dem", "pl": "den"},
}
_THIS_ENDINGS = {
    "nom": {"m": "er", "f": "e", "n": "es", "pl": "e"},
    "acc": {"m": "en", "f": "e", "n": "es", "pl": "e"},
    "dat": {"m": "em", "f": "er", "n": "em", "pl": "en"},
}
_EIN_ENDINGS = {
    "nom": {"m": "", "f": "e", "n": "", "pl": "e"},
    "acc": {"m": "en", "f": "e", "n": "", "pl": "e"},
    "dat": {"m": "em", "f": "er", "n": "em", "pl": "en"},
}
_WEAK_ENDINGS = {
    "nom": {"m": "e", "f": "e", "n": "e", "pl": "en"},
    "acc": {"m": "en", "f": "e", "n": "e", "pl": "en"},
    "dat": {"m": "en", "f": "en", "n": "en", "pl": "en"},
}
_PREPOSITIONAL_PARTICLES = {"at", "for", "to"}


@dataclass(frozen=True)
class Nominal:
    """A noun phrase with a noun.

    ``determiner`` is ``the``, ``a``, ``this``, a possessive, a numeral or ``""`` (bare plural).
    """

    noun: Noun
    determiner: str
    plural: bool = False
    adjective: Adjective | None = None

    @property
    def indefinite(self) -> bool:
        """Whether negation turns its determiner into ``kein``."""
        return self.determiner in ("a", "")

    @property
    def numeral(self) -> bool:
        """Whether the determiner is a numeral."""
        return self.determiner in NUMERALS


@dataclass(frozen=True)
class Name:
    """One name, or two joined with ``and``."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Pronoun:
    """A personal pronoun."""

    forms: PronounForms


@dataclass(frozen=True)
class Question:
    """The question word ``who`` as a subject or ``what`` as an object."""

    word: str


NounPhrase = Nominal | Name | Pronoun | Question


@dataclass(frozen=True)
class Prepositional:
    """A preposition and its noun phrase."""

    preposition: Preposition
    phrase: Nominal | Name


@dataclass(frozen=True)
class Clause:
    """One clause.

    ``order`` is ``statement``, ``question`` or ``subordinate``; ``front`` what precedes the verb:
    ``""`` (the subject), ``adverb`` or ``pp``; ``wh`` an adverbial question word.
    """

    subject: NounPhrase
    verb: Verb
    order: str = "statement"
    obj: NounPhrase | None = None
    recipient: NounPhrase | None = None
    predicate: Adjective | None = None
    very: bool = False
    aux: Auxiliary | None = None
    negated: bool = False
    adverb: Adverb | None = None
    pp: Prepositional | None = None
    front: str = ""
    wh: str = ""

    @property
    def kein(self) -> bool:
        """Whether the negation shows as ``kein`` on the object."""
        return self.negated and isinstance(self.obj, Nominal) and self.obj.indefinite

    @property
    def asks_object(self) -> bool:
        """Whether the object is the question word."""
        return isinstance(self.obj, Question)


@dataclass(frozen=True)
class Sentence:
    """A main clause, alone or joined by ``conjunction`` to a second one, which may come first."""

    main: Clause
    conjunction: str = ""
    second: Clause | None = None
    second_first: bool = False

    @property
    def clauses(self) -> tuple[Clause, ...]:
        """The clauses, main clause first."""
        return (self.main,) if self.second is None else (self.main, self.second)


def agreement(phrase: NounPhrase) -> str:
    """Person and number of a subject: ``1sg``, ``3sg`` or ``pl``."""
    if isinstance(phrase, Pronoun):
        return phrase.forms.agreement
    if isinstance(phrase, Name):
        return "pl" if len(phrase.names) > 1 else "3sg"
    return "pl" if isinstance(phrase, Nominal) and phrase.plural else "3sg"


# --- English ---------------------------------------------------------------------------------------------


def _english_phrase(phrase: NounPhrase, role: str, subject: bool = False, kein: bool = False) -> Tokens:
    if isinstance(phrase, Pronoun):
        return [(phrase.forms.en_subject if subject else phrase.forms.en_object, (role,))]
    if isinstance(phrase, Question):
        return [(phrase.word, (role,))]
    if isinstance(phrase, Name):
        return _joined_names(phrase, role, "and")
    content: Tokens = []
    if phrase.adjective:
        content.append((phrase.adjective.en, (role + ".adj",)))
    content.append((phrase.noun.en_plural if phrase.plural else phrase.noun.en, (role + ".noun",)))
    determiner = phrase.determiner
    if determiner == "a" and content[0][0][0] in "aeiou":
        determiner = "an"
    elif determiner == "this" and phrase.plural:
        determiner = "these"
    elif determiner == "" and kein:
        determiner = "any"
    return [(determiner, (role + ".det",)), *content] if determiner else content


def _joined_names(phrase: Name, role: str, conjunction: str) -> Tokens:
    tokens: Tokens = []
    for index, name in enumerate(phrase.names):
        if index:
            tokens.append((conjunction, (role + ".and",)))
        tokens.append((name, (f"{role}.{index}",)))
    return tokens


def _english_finite(verb: Verb, agree: str) -> str:
    if verb.kind == "be":
        return {"1sg": "am", "3sg": "is", "pl": "are"}[agree]
    return verb.en_3sg if agree == "3sg" else verb.en_words[0]


def _english_verbs(clause: Clause, inverted: bool) -> tuple[Tokens, Tokens]:
    """The operator (auxiliary, ``do`` or ``be``) with its negation, and the rest of the verb group."""
    verb, agree = clause.verb, agreement(clause.subject)
    base: Tokens = [(verb.en_words[0], ("verb",))]
    negation: Tokens = [("not", ("neg",))] if clause.negated else []
    aux = clause.aux
    if aux and aux.en != "want":
        if aux.en == "can" and clause.negated and not inverted:
            return [("cannot", ("aux", "neg"))], base
        return [(aux.en, ("aux",)), *negation], base
    if aux:
        base = [("want", ("aux",)), ("to", ("aux",)), *base]
    if verb.kind == "be" and not aux:
        return [(_english_finite(verb, agree), ("verb",)), *negation], []
    if clause.negated or inverted:
        return [("does" if agree == "3sg" else "do", ("aux" if aux else "verb",)), *negation], base
    if aux:
        return [], [("wants" if agree == "3sg" else "want", ("aux",)), *base[1:]]
    return [], [(_english_finite(verb, agree), ("verb",))]


def _english_objects(clause: Clause) -> Tokens:
    particle: Tokens = [(word, ("verb",)) for word in clause.verb.en_words[1:]]
    objects: Tokens = []
    if clause.recipient:
        objects += _english_phrase(clause.recipient, "recipient")
    if clause.obj and not clause.asks_object:
        objects += _english_phrase(clause.obj, "object", kein=clause.kein)
    splits = particle and particle[0][0] not in _PREPOSITIONAL_PARTICLES
    return objects + particle if splits and isinstance(clause.obj, Pronoun) else particle + objects


def _english_pp(pp: Prepositional) -> Tokens:
    words: Tokens = [(word, ("prep",)) for word in pp.preposition.en.split()]
    return words + _english_phrase(pp.phrase, "pp")


def _adverb_tokens(words: list[str]) -> Tokens:
    """An adverbial: its last word and the words before it have ids of their own."""
    if len(words) == 1:
        return [(words[0], ("adverb", "adverb.head"))]
    first: Tokens = [(word, ("adverb",)) for word in words[:-1]]
    return [*first, (words[-1], ("adverb.head",))]


def english_clause(clause: Clause) -> Tokens:
    """Realise a clause's English tokens, without conjunction and final punctuation."""
    asks_subject = isinstance(clause.subject, Question)
    inverted = clause.order == "question" and not asks_subject
    operator, verbs = _english_verbs(clause, inverted)
    subject = _english_phrase(clause.subject, "subject", subject=True)
    adverb = _adverb_tokens(clause.adverb.en.split()) if clause.adverb else []
    tokens: Tokens = []
    if clause.asks_object and clause.obj:
        tokens += _english_phrase(clause.obj, "object")
    if clause.wh:
        tokens.append((clause.wh, ("wh",)))
    if clause.front:
        tokens += adverb if clause.front == "adverb" else _english_pp(clause.pp) if clause.pp else []
    if inverted:
        negation = [token for token in operator if token[0] == "not"]
        tokens += [token for token in operator if token[0] != "not"] + subject + negation
    else:
        tokens += subject + operator
    frequency = clause.adverb is not None and clause.adverb.kind == "freq"
    tokens += (adverb if frequency else []) + verbs + _english_objects(clause)
    if clause.very:
        tokens.append(("very", ("very",)))
    if clause.predicate:
        tokens.append((clause.predicate.en, ("predicate",)))
    if clause.pp and clause.front != "pp":
        tokens += _english_pp(clause.pp)
    return tokens + (adverb if clause.front != "adverb" and not frequency else [])


# --- German ----------------------------------------------------------------------------------------------


def german_determiner(determiner: str, case: str, gender: str) -> str:
    """The German determiner; ``gender`` is ``m``, ``f``, ``n`` or ``pl``."""
    if determiner == "the":
        return _DEFINITE[case][gender]
    if determiner == "this":
        return "dies" + _THIS_ENDINGS[case][gender]
    if determiner in NUMERALS:
        return NUMERALS[determiner]
    stem = {"a": "ein", "kein": "kein"}.get(determiner) or POSSESSIVES[determiner]
    return stem + _EIN_ENDINGS[case][gender]


def german_adjective(adjective: Adjective, determiner: str, case: str, gender: str) -> str:
    """An attributive adjective with its weak, mixed or strong ending."""
    stem = adjective.stem
    if determiner == "" or determiner in NUMERALS:
        return stem + _THIS_ENDINGS[case][gender]
    bare_ein = determiner not in ("the", "this") and _EIN_ENDINGS[case][gender] == ""
    return stem + (_THIS_ENDINGS if bare_ein else _WEAK_ENDINGS)[case][gender]


def german_noun(noun: Noun, case: str, plural: bool) -> str:
    """A noun in its case: dative plural ``-n`` and weak masculines."""
    if not plural:
        return noun.oblique if noun.oblique and case != "nom" else noun.de
    return noun.de_plural + ("n" if case == "dat" and noun.de_plural[-1] not in "ns" else "")


def _german_phrase(phrase: NounPhrase, role: str, case: str, kein: bool = False) -> Tokens:
    if isinstance(phrase, Pronoun):
        forms = phrase.forms
        return [({"nom": forms.nom, "acc": forms.acc, "dat": forms.dat}[case], (role,))]
    if isinstance(phrase, Question):
        return [(WH_WORDS[phrase.word], (role,))]
    if isinstance(phrase, Name):
        return _joined_names(phrase, role, COORDINATORS["and"])
    gender = "pl" if phrase.plural else phrase.noun.gender
    determiner = "kein" if kein else phrase.determiner
    tokens: Tokens = []
    if determiner:
        ids: tuple[str, ...] = (role + ".det", "neg") if kein else (role + ".det",)
        tokens.append((german_determiner(determiner, case, gender), ids))
    if phrase.adjective:
        word = german_adjective(phrase.adjective, determiner, case, gender)
        tokens.append((word, (role + ".adj",)))
    return [*tokens, (german_noun(phrase.noun, case, phrase.plural), (role + ".noun",))]


def _german_pp(pp: Prepositional) -> Tokens:
    phrase = _german_phrase(pp.phrase, "pp", pp.preposition.case)
    merged = CONTRACTIONS.get((pp.preposition.de, phrase[0][0]))
    if merged:
        return [(merged, ("prep", *phrase[0][1])), *phrase[1:]]
    return [(pp.preposition.de, ("prep",)), *phrase]


def _german_finite(verb: Verb, agree: str) -> str:
    if agree == "pl":
        return "sind" if verb.kind == "be" else verb.de_stem_inf
    return verb.de_1sg if agree == "1sg" else verb.de_3sg


def _german_verbs(clause: Clause) -> tuple[Token, Tokens]:
    """The finite verb and the words of the right bracket."""
    verb, agree, aux = clause.verb, agreement(clause.subject), clause.aux
    if aux:
        word = {"1sg": aux.de_1sg, "3sg": aux.de_3sg, "pl": aux.de_plural}[agree]
        return (word, ("aux",)), [(verb.infinitive, ("verb",))]
    finite = _german_finite(verb, agree)
    if clause.order == "subordinate":
        return (verb.prefix + finite, ("verb",)), []
    return (finite, ("verb",)), [(verb.prefix, ("verb",))] if verb.prefix else []


def _german_middle(clause: Clause) -> Tokens:
    """The middle field after the subject: recipient, definite object, adverb, indefinite object, nicht..."""
    obj = clause.obj
    objects: Tokens = []
    if obj and not clause.asks_object:
        objects = _german_phrase(obj, "object", "dat" if clause.verb.kind == "dat" else "acc", clause.kein)
    late = isinstance(obj, Nominal) and (obj.indefinite or obj.numeral)
    tokens = _german_phrase(clause.recipient, "recipient", "dat") if clause.recipient else []
    if not late:
        tokens += objects
    if clause.adverb and clause.front != "adverb":
        tokens += _adverb_tokens(clause.adverb.de.split())
    if late:
        tokens += objects
    if clause.negated and not clause.kein:
        tokens.append(("nicht", ("neg",)))
    if clause.pp and clause.front != "pp":
        tokens += _german_pp(clause.pp)
    if clause.very:
        tokens.append(("sehr", ("very",)))
    if clause.predicate:
        tokens.append((clause.predicate.de, ("predicate",)))
    return tokens


def _german_front(clause: Clause) -> Tokens:
    """The explicit front field; empty where the subject takes it."""
    if clause.asks_object and clause.obj:
        return _german_phrase(clause.obj, "object", "acc")
    if clause.wh:
        return [(WH_WORDS[clause.wh], ("wh",))]
    if clause.front == "adverb" and clause.adverb:
        return _adverb_tokens(clause.adverb.de.split())
    if clause.front == "pp" and clause.pp:
        return _german_pp(clause.pp)
    return []


def german_clause(clause: Clause, verb_first: bool = False) -> Tokens:
    """Realise a clause's German tokens; ``verb_first`` after a clause that fills its front field."""
    subject = _german_phrase(clause.subject, "subject", "nom")
    finite, right = _german_verbs(clause)
    middle = _german_middle(clause)
    if clause.order == "subordinate":
        return [*subject, *middle, *right, finite]
    front = _german_front(clause)
    yes_no = clause.order == "question" and not isinstance(clause.subject, Question)
    if front or yes_no or verb_first:
        return [*front, finite, *subject, *middle, *right]
    return [*subject, finite, *middle, *right]


# --- sentences -------------------------------------------------------------------------------------------


def _marked(tokens: Iterable[Token], mark: str) -> Tokens:
    return [(word, tuple([mark + part for part in ids])) for word, ids in tokens]


def _comma(tokens: Tokens) -> Tokens:
    word, ids = tokens[-1]
    return [*tokens[:-1], (word + ",", ids)]


def _finished(tokens: Tokens, question: bool) -> Tokens:
    word, ids = tokens[0]
    tokens = [(word[0].upper() + word[1:], ids), *tokens[1:]]
    word, ids = tokens[-1]
    return [*tokens[:-1], (word + ("?" if question else "."), ids)]


def realise(sentence: Sentence) -> tuple[Tokens, Tokens]:
    """Realise a sentence: its English and its German tokens with their ids."""
    second, conjunction = sentence.second, sentence.conjunction
    english = _marked(english_clause(sentence.main), "1:")
    german = _marked(german_clause(sentence.main, sentence.second_first), "1:")
    if second is not None:
        link = SUBORDINATORS.get(conjunction) or COORDINATORS[conjunction]
        english_second: Tokens = [(conjunction, ("link",)), *_marked(english_clause(second), "2:")]
        german_second: Tokens = [(link, ("link",)), *_marked(german_clause(second), "2:")]
        if sentence.second_first:
            english = _comma(english_second) + english
            german = _comma(german_second) + german
        else:
            english = (_comma(english) if conjunction == "but" else english) + english_second
            german = (german if conjunction == "and" else _comma(german)) + german_second
    question = sentence.main.order == "question"
    return _finished(english, question), _finished(german, question)


def align(english: Tokens, german: Tokens) -> tuple[tuple[int, int], ...]:
    """The pairs of positions whose tokens share an id."""
    places: dict[str, list[int]] = {}
    for j, (_, ids) in enumerate(german):
        for part in ids:
            places.setdefault(part, []).append(j)
    found = {(i, j) for i, (_, ids) in enumerate(english) for part in ids for j in places.get(part, ())}
    return tuple(sorted(found))
