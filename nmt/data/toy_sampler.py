"""Draws sentence trees of the toy grammar at random, keeping to what makes sense and has one translation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import TypeVar

from nmt.data.toy_grammar import (
    Clause,
    Name,
    Nominal,
    NounPhrase,
    Prepositional,
    Pronoun,
    Question,
    Sentence,
)
from nmt.data.toy_lexicon import (
    ADJECTIVES,
    ADVERBS,
    ASK,
    BE,
    COMPLEMENTIZERS,
    COORDINATORS,
    FREE_CONJUNCTIONS,
    FUTURE,
    KNOW,
    MODALS,
    NAMES,
    NOUNS,
    NUMERALS,
    POSSESSIVES,
    PREPOSITIONS,
    PRESENT_CONJUNCTIONS,
    PRONOUNS,
    THAT_VERBS,
    VERBS,
    Adjective,
    Adverb,
    Auxiliary,
    Noun,
    Preposition,
    PronounForms,
    Verb,
)

_T = TypeVar("_T")


def _tagged(tags: str) -> tuple[Noun, ...]:
    return tuple(noun for noun in NOUNS if set(noun.tags) & set(tags))


def _fitting(noun: Noun) -> tuple[Adjective, ...]:
    kind = noun.tags[0] if noun.tags[0] in "par" else "t"
    wanted = {"t", "r"} if noun.tags == "w" else {kind}  # a poem has no colour and no weight
    return tuple(adjective for adjective in ADJECTIVES if wanted <= set(adjective.tags))


def _urn(weights: dict[str, int]) -> tuple[str, ...]:
    return tuple(name for name, weight in weights.items() for _ in range(weight))


ALL_VERBS = [verb for verbs in VERBS.values() for verb in verbs]
_TAG_SETS = {tags for verb in [*ALL_VERBS, BE] for tags in (verb.objects, verb.subjects)}
_TAG_SETS |= {preposition.tags for preposition in PREPOSITIONS}
_NOUNS_BY_TAGS = {tags: _tagged(tags) for tags in _TAG_SETS}
_ADJECTIVES_BY_NOUN = {noun.en: _fitting(noun) for noun in NOUNS}
_PERSON_ADJECTIVES = tuple(adjective for adjective in ADJECTIVES if "p" in adjective.tags)
_NUMERAL_WORDS, _POSSESSIVE_WORDS = tuple(NUMERALS), tuple(POSSESSIVES)
_VERB_KINDS = _urn({"acc": 30, "sep-acc": 20, "dat": 8, "dit": 8, "int": 15, "sep-int": 11, "be": 8})
_SENTENCE_KINDS = _urn(
    {
        "plain": 30,
        "fronted": 13,
        "yes-no": 13,
        "wh": 15,
        "complement": 13,
        "adverbial": 12,
        "coordinated": 4,
    }
)


@cache
def _prepositions(places: str) -> tuple[Preposition, ...]:
    return tuple(preposition for preposition in PREPOSITIONS if preposition.place in places)


@cache
def _adverbs(auxiliary: bool, negated: bool) -> tuple[Adverb, ...]:
    """No ``tomorrow`` in the present tense, no ``often`` under negation."""
    kinds = {"time"} | ({"later"} if auxiliary else set()) | (set() if negated else {"freq"})
    return tuple(adverb for adverb in ADVERBS if adverb.kind in kinds)


class Sampler:
    """Draws sentences from the grammar."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng

    def pick(self, options: Sequence[_T]) -> _T:
        """Any of the options."""
        return options[int(self.rng.random() * len(options))]

    def chance(self, probability: float) -> bool:
        """True with that probability."""
        return self.rng.random() < probability

    def nominal(self, tags: str, negated: bool = False, definite: bool = False) -> Nominal:
        """A noun phrase; no numeral where ``negated``, no numeral or indefinite where ``definite``."""
        noun = self.pick(_NOUNS_BY_TAGS[tags])
        adjective = self.pick(_ADJECTIVES_BY_NOUN[noun.en]) if self.chance(0.3) else None
        draw = self.rng.random()
        if negated and draw < 0.3:  # so that kein is as frequent as its rivals
            draw += 0.7
        if draw < 0.38 or (definite and draw >= 0.64):
            return Nominal(noun, "the", self.chance(0.25), adjective)
        if draw < 0.54:
            return Nominal(noun, self.pick(_POSSESSIVE_WORDS), self.chance(0.25), adjective)
        if draw < 0.64:
            return Nominal(noun, "this", self.chance(0.25), adjective)
        if draw < 0.74 and not negated:
            return Nominal(noun, self.pick(_NUMERAL_WORDS), True, adjective)
        return Nominal(noun, "a", False, adjective) if draw < 0.94 else Nominal(noun, "", True, adjective)

    def subject(self, tags: str) -> NounPhrase:
        """A subject: a definite or numbered noun, or, for a person, a pronoun or name."""
        draw = self.rng.random()
        if "p" in tags and draw < 0.33:
            return Pronoun(self.pick(PRONOUNS))
        if "p" in tags and draw < 0.5:
            return Name(tuple(self.rng.sample(NAMES, 2 if self.chance(0.2) else 1)))
        phrase = self.nominal(tags, definite=True)
        if self.chance(0.12):
            return replace(phrase, determiner=self.pick(_NUMERAL_WORDS), plural=True)
        return phrase

    def object(self, tags: str, subject: NounPhrase, negated: bool, definite: bool = False) -> NounPhrase:
        """An object; no pronoun that would have to be reflexive."""
        draw = self.rng.random()
        if "p" in tags and draw < 0.26:
            return Pronoun(self.pick([forms for forms in PRONOUNS if not _reflexive(subject, forms)]))
        if "p" in tags and draw < 0.38:
            used = subject.names if isinstance(subject, Name) else ()
            return Name((self.pick([name for name in NAMES if name not in used]),))
        return self.nominal(tags, negated, definite)

    def pp(self, places: str) -> Prepositional | None:
        """A prepositional phrase of one of the kinds a verb allows."""
        fitting = _prepositions(places)
        if not fitting:
            return None
        preposition = self.pick(fitting)
        if "p" in preposition.tags and self.chance(0.2):
            return Prepositional(preposition, Name((self.pick(NAMES),)))
        phrase = self.nominal(preposition.tags, negated=preposition.en == "in")
        if not phrase.determiner:
            phrase = replace(phrase, determiner="the")
        return Prepositional(preposition, phrase)

    def auxiliary(self, negated: bool) -> Auxiliary | None:
        """No auxiliary, a modal or the future."""
        draw = self.rng.random()
        if draw < 0.5:
            return None
        if draw < 0.7:
            return FUTURE
        return self.pick([modal for modal in MODALS if modal.negatable or not negated])

    def clause(self, present: bool = False, plain: bool = False) -> Clause:
        """A statement; ``present`` without auxiliary, ``plain`` without adverb and prepositional phrase."""
        kind = self.pick(_VERB_KINDS)
        if kind == "be":
            return self._copula(present)
        verb = self.pick(VERBS[kind])
        negated = self.chance(0.28)
        subject = self.subject(verb.subjects)
        obj, recipient = self._objects(verb, subject, negated)
        stative = verb.en == "belong_to"
        aux = None if present or stative else self.auxiliary(negated)
        pp = adverb = None
        if not plain:
            intransitive = verb.kind == "int"
            pp = self.pp(verb.places) if self.chance(0.55 if intransitive else 0.3) else None
            if not stative and self.chance(0.25 if pp else 0.5 if intransitive else 0.3):
                adverb = self.pick(_adverbs(aux is not None, negated))
        return Clause(subject, verb, obj=obj, recipient=recipient, aux=aux, negated=negated, adverb=adverb, pp=pp)

    def _objects(self, verb: Verb, subject: NounPhrase, negated: bool) -> tuple[NounPhrase | None, NounPhrase | None]:
        """The direct (or only, dative) object and the recipient, where the verb has them."""
        if verb.kind == "dit":
            obj = self.nominal(verb.objects, negated)
            return obj, self.object("p", subject, negated, definite=True)
        return (None if verb.kind == "int" else self.object(verb.objects, subject, negated)), None

    def _copula(self, present: bool) -> Clause:
        subject, negated = self.subject("patvr"), self.chance(0.3)
        aux = FUTURE if not present and self.chance(0.15) else None
        place = isinstance(subject, Nominal) and "r" in subject.noun.tags
        if not place and self.chance(0.3):
            return Clause(subject, BE, aux=aux, negated=negated, pp=self.pp("L"))
        if isinstance(subject, Nominal):
            subject = replace(subject, adjective=None)
            adjectives = _ADJECTIVES_BY_NOUN[subject.noun.en]
        else:
            adjectives = _PERSON_ADJECTIVES
        very = self.chance(0.3)
        return Clause(subject, BE, predicate=self.pick(adjectives), very=very, aux=aux, negated=negated)

    def fronted(self) -> Sentence:
        """A statement that begins with an adverbial of time or place."""
        while True:
            clause = self.clause()
            if clause.adverb and clause.adverb.kind in ("time", "later"):
                return Sentence(replace(clause, front="adverb"))
            if clause.pp and clause.pp.preposition.place == "L" and clause.verb is not BE:
                return Sentence(replace(clause, front="pp"))

    def wh_question(self) -> Sentence:
        """A question with ``who``, ``what``, ``where``, ``when`` or ``why``."""
        word = self.pick(("who", "what", "where", "when", "why", "why"))
        while True:
            clause = replace(self.clause(), order="question")
            if word == "who" and "p" in clause.verb.subjects:
                if clause.predicate and clause.predicate not in _PERSON_ADJECTIVES:
                    continue
                return Sentence(replace(clause, subject=Question("who")))
            if word == "what" and _takes_what(clause):
                return Sentence(replace(clause, obj=Question("what"), negated=False))
            if word == "why":
                return Sentence(replace(clause, wh=word))
            if word == "where" and "L" in clause.verb.places:
                clause = replace(clause, predicate=None, very=False)
                return Sentence(replace(clause, wh=word, pp=None, negated=False))
            if word == "when" and clause.verb.kind not in ("be", "dat"):
                return Sentence(replace(clause, wh=word, adverb=None, negated=False))

    def complement(self) -> Sentence:
        """A main clause that governs a clause with ``that`` or ``whether``."""
        conjunction = self.pick(tuple(COMPLEMENTIZERS))
        verb = self.pick(THAT_VERBS if conjunction == "that" else (KNOW, ASK))
        negated = verb is KNOW and (conjunction == "whether" or self.chance(0.3))
        main = Clause(self._short_subject(), verb, negated=negated)
        if conjunction == "that" and self.chance(0.15):
            main = replace(main, order="question")
        second = replace(self.clause(plain=self.chance(0.6)), order="subordinate")
        return Sentence(main, conjunction, second)

    def adverbial(self) -> Sentence:
        """A main clause and an adverbial clause, in either order."""
        conjunctions = FREE_CONJUNCTIONS if self.chance(0.5) else PRESENT_CONJUNCTIONS
        conjunction = self.pick(tuple(conjunctions))
        present = conjunctions is PRESENT_CONJUNCTIONS
        second = replace(self.clause(present=present, plain=True), order="subordinate")
        if conjunction == "before":
            second = replace(second, negated=False)
        main = self.clause(plain=True)
        if self.chance(0.5):
            main = replace(main, subject=self._short_subject(main.subject, main.verb))
        return Sentence(main, conjunction, second, second_first=self.chance(0.4))

    def coordinated(self) -> Sentence:
        """Two short statements joined by ``and`` or ``but``."""
        first, second = self.clause(plain=True), self.clause(plain=True)
        return Sentence(first, self.pick(tuple(COORDINATORS)), second)

    def _short_subject(self, instead_of: NounPhrase | None = None, verb: Verb = KNOW) -> NounPhrase:
        if instead_of is not None and (verb.kind != "int" or "p" not in verb.subjects):
            return instead_of
        if self.chance(0.5):
            return Pronoun(self.pick(PRONOUNS))
        return self.subject("p") if self.chance(0.4) else Name((self.pick(NAMES),))

    def sentence(self) -> Sentence:
        """Any sentence."""
        kind = self.pick(_SENTENCE_KINDS)
        if kind == "plain":
            return Sentence(self.clause())
        if kind == "yes-no":
            return Sentence(replace(self.clause(), order="question"))
        draw: dict[str, Callable[[], Sentence]] = {
            "fronted": self.fronted,
            "wh": self.wh_question,
            "complement": self.complement,
            "adverbial": self.adverbial,
            "coordinated": self.coordinated,
        }
        return draw[kind]()


def _reflexive(subject: NounPhrase, forms: PronounForms) -> bool:
    """Whether a subject and an object pronoun overlap: ``he ... him``, ``we ... me``."""
    if not isinstance(subject, Pronoun):
        return False
    return subject.forms is forms or {subject.forms.en_subject, forms.en_subject} == {"I", "we"}


def _takes_what(clause: Clause) -> bool:
    """Whether ``what`` may stand for the direct object: an accusative of a thing."""
    verb = clause.verb
    return verb.kind in ("acc", "dit") and bool(set(verb.objects) & set("tfcdwvom"))
