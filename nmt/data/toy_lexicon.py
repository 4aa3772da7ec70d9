"""Word tables of the built-in toy corpus: English lexemes with their one German translation.

Semantic tags say which nouns go with which verbs and adjectives: ``p`` person, ``a`` animal, ``t`` portable
thing, ``v`` vehicle, ``r`` place, and the finer ``f`` food, ``c`` clothing, ``d`` device, ``w`` reading
matter, ``o`` what opens, ``h`` what hangs on a wall, ``m`` room to tidy, ``b`` building.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Noun:
    """A noun: English and German singular and plural, German gender, tags; ``oblique`` if weak."""

    en: str
    en_plural: str
    gender: str
    de: str
    de_plural: str
    tags: str
    oblique: str = ""


@dataclass(frozen=True)
class Adjective:
    """An adjective: English, German predicative form, German stem before endings, tags of fitting nouns."""

    en: str
    de: str
    stem: str
    tags: str


@dataclass(frozen=True)
class Verb:
    """A verb in both languages.

    ``kind`` is ``acc``, ``dat``, ``dit`` (dative and accusative), ``int`` or ``be``; ``prefix`` the separable
    prefix; ``objects`` and ``subjects`` noun tags; ``places`` the prepositional phrases that fit: ``L``
    place, ``W`` company, ``F`` for somebody, ``T`` through a place.
    """

    en: str
    en_3sg: str
    kind: str
    prefix: str
    de_stem_inf: str
    de_1sg: str
    de_3sg: str
    objects: str
    subjects: str
    places: str

    @property
    def en_words(self) -> tuple[str, ...]:
        """The base form's words: ``("pick", "up")``."""
        return tuple(self.en.split("_"))

    @property
    def infinitive(self) -> str:
        """The German infinitive, prefix joined."""
        return self.prefix + self.de_stem_inf


@dataclass(frozen=True)
class Auxiliary:
    """A modal verb, or the future auxiliary: English form(s) and German 1st and 3rd singular, plural."""

    en: str
    de_1sg: str
    de_3sg: str
    de_plural: str
    negatable: bool

    @property
    def future(self) -> bool:
        """Whether this is the future auxiliary rather than a modal."""
        return self.en == "will"


@dataclass(frozen=True)
class Adverb:
    """An adverbial of one or more words; ``kind`` is ``time``, ``later`` (needs an auxiliary) or ``freq``."""

    en: str
    de: str
    kind: str


@dataclass(frozen=True)
class Preposition:
    """A preposition, its fixed case here, the noun tags that fit and the ``places`` letter it needs."""

    en: str
    de: str
    case: str
    tags: str
    place: str


@dataclass(frozen=True)
class PronounForms:
    """A personal pronoun: English subject and object, German nominative, accusative, dative; agreement."""

    en_subject: str
    en_object: str
    nom: str
    acc: str
    dat: str
    agreement: str


_NOUN_TABLE = """
man men m Mann Männer p
woman women f Frau Frauen p
child children n Kind Kinder p
boy boys m Junge Jungen p Jungen
girl girls n Mädchen Mädchen p
teacher teachers m Lehrer Lehrer p
doctor doctors m Arzt Ärzte p
neighbor neighbors m Nachbar Nachbarn p Nachbarn
friend friends m Freund Freunde p
brother brothers m Bruder Brüder p
sister sisters f Schwester Schwestern p
mother mothers f Mutter Mütter p
father fathers m Vater Väter p
uncle uncles m Onkel Onkel p
aunt aunts f Tante Tanten p
son sons m Sohn Söhne p
daughter daughters f Tochter Töchter p
baker bakers m Bäcker Bäcker p
farmer farmers m Bauer Bauern p Bauern
gardener gardeners m Gärtner Gärtner p
queen queens f Königin Königinnen p
king kings m König Könige p
guest guests m Gast Gäste p
student students m Student Studenten p Studenten
singer singers f Sängerin Sängerinnen p
waiter waiters m Kellner Kellner p
dog dogs m Hund Hunde a
cat cats f Katze Katzen a
bird birds m Vogel Vögel a
horse horses n Pferd Pferde a
cow cows f Kuh Kühe a
mouse mice f Maus Mäuse a
duck ducks f Ente Enten a
goat goats f Ziege Ziegen a
pig pigs n Schwein Schweine a
rabbit rabbits n Kaninchen Kaninchen a
bear bears m Bär Bären a Bären
frog frogs m Frosch Frösche a
book books n Buch Bücher tw
letter letters m Brief Briefe tw
newspaper newspapers f Zeitung Zeitungen tw
poem poems n Gedicht Gedichte w
story stories f Geschichte Geschichten w
apple apples m Apfel Äpfel tf
pear pears f Birne Birnen tf
egg eggs n Ei Eier tf
cake cakes m Kuchen Kuchen tf
sausage sausages f Wurst Würste tf
tomato tomatoes f Tomate Tomaten tf
coat coats m Mantel Mäntel tc
hat hats m Hut Hüte tc
shirt shirts n Hemd Hemden tc
dress dresses n Kleid Kleider tc
jacket jackets f Jacke Jacken tc
lamp lamps f Lampe Lampen tdh
computer computers m Computer Computer td
camera cameras f Kamera Kameras td
radio radios n Radio Radios td
table tables m Tisch Tische t
chair chairs m Stuhl Stühle t
cup cups f Tasse Tassen t
plate plates m Teller Teller t
bottle bottles f Flasche Flaschen to
key keys m Schlüssel Schlüssel t
bag bags f Tasche Taschen to
box boxes f Kiste Kisten to
suitcase suitcases m Koffer Koffer to
door doors f Tür Türen o
window windows n Fenster Fenster o
picture pictures n Bild Bilder th
mirror mirrors m Spiegel Spiegel th
clock clocks f Uhr Uhren th
flower flowers f Blume Blumen t
ball balls m Ball Bälle t
knife knives n Messer Messer t
spoon spoons m Löffel Löffel t
ring rings m Ring Ringe t
gift gifts n Geschenk Geschenke to
basket baskets m Korb Körbe t
blanket blankets f Decke Decken t
umbrella umbrellas m Regenschirm Regenschirme to
car cars n Auto Autos v
bicycle bicycles n Fahrrad Fahrräder v
boat boats n Boot Boote v
ship ships n Schiff Schiffe v
bus buses m Bus Busse v
garden gardens m Garten Gärten r
forest forests m Wald Wälder r
park parks m Park Parks r
village villages n Dorf Dörfer r
city cities f Stadt Städte r
house houses n Haus Häuser rbm
kitchen kitchens f Küche Küchen rm
room rooms n Zimmer Zimmer rm
office offices n Büro Büros rm
school schools f Schule Schulen rb
church churches f Kirche Kirchen rb
hotel hotels n Hotel Hotels rb
museum museums n Museum Museen rb
castle castles n Schloss Schlösser rb
theater theaters n Theater Theater rb
restaurant restaurants n Restaurant Restaurants rb
"""

# English, German, tags of fitting nouns (p, a, t, r); a stem follows where it differs.
_ADJECTIVE_TABLE = """
small klein patr
big groß patr
old alt patr
beautiful schön patr
ugly hässlich patr
strange seltsam patr
famous berühmt pr
young jung pa
new neu tr
friendly freundlich pa
happy glücklich p
sad traurig pa
tired müde pa müd
hungry hungrig pa
rich reich p
poor arm p
brave mutig pa
clever klug pa
strong stark pa
lazy faul pa
curious neugierig pa
angry wütend pa
sick krank pa
polite höflich p
red rot t
blue blau t
green grün t
yellow gelb t
black schwarz at
white weiß at
brown braun at
heavy schwer t
cheap billig t
expensive teuer t teur
dirty schmutzig tar
modern modern tr
"""

# English base (particle after _), English 3rd singular, German infinitive, German 3rd singular,
# object tags, subject tags, fitting prepositional phrases. A hyphen marks the separable prefix.
_ACCUSATIVE_VERBS = """
see sees sehen sieht patvro pa L
find finds finden findet patv pa L
look_for looks suchen sucht patv p LW
love loves lieben liebt pa p -
visit visits besuchen besucht pr p W
buy buys kaufen kauft tv p LWF
need needs brauchen braucht tvp p -
have has haben hat tva p -
read reads lesen liest w p LW
write writes schreiben schreibt w p LF
eat eats essen isst f pa LW
draw draws zeichnen zeichnet patvro p LF
paint paints malen malt patvro p LF
carry carries tragen trägt t p FT
repair repairs reparieren repariert vdo p LF
wash washes waschen wäscht cv p LF
hear hears hören hört pa pa L
greet greets grüßen grüßt p p L
meet meets treffen trifft p p L
ask asks fragen fragt p p -
understand understands verstehen versteht pw p -
forget forgets vergessen vergisst tp p L
lose loses verlieren verliert t p L
hide hides verstecken versteckt t pa L
describe describes beschreiben beschreibt patvro p -
feed feeds füttern füttert a p LW
catch catches fangen fängt a pa L
protect protects schützen schützt par p -
pay pays bezahlen bezahlt p p -
sell sells verkaufen verkauft tva p L
order orders bestellen bestellt tf p LF
admire admires bewundern bewundert pavr p -
photograph photographs fotografieren fotografiert pavr p W
watch watches beobachten beobachtet pa pa L
"""
_SEPARABLE_ACCUSATIVE_VERBS = """
pick_up picks ab-holen holt p p W
call calls an-rufen ruft p p -
invite invites ein-laden lädt p p -
look_at looks an-sehen sieht patvro pa -
open opens auf-machen macht o p W
close closes zu-machen macht o p -
bring_along brings mit-bringen bringt tpa p F
take_along takes mit-nehmen nimmt tpa p -
put_on puts an-ziehen zieht c p L
take_off takes aus-ziehen zieht c p L
try_out tries aus-probieren probiert dv p LW
turn_on turns ein-schalten schaltet d p -
turn_off turns aus-schalten schaltet d p -
throw_away throws weg-werfen wirft t p -
give_back gives zurück-geben gibt t p -
read_aloud reads vor-lesen liest w p L
tidy_up tidies auf-räumen räumt m p WF
hang_up hangs auf-hängen hängt hc p LF
"""
_DATIVE_VERBS = """
help helps helfen hilft pa p L
thank thanks danken dankt p p -
follow follows folgen folgt pav pa T
trust trusts vertrauen vertraut pa p -
belong_to belongs gehören gehört p atv -
answer answers antworten antwortet p p -
"""
_DITRANSITIVE_VERBS = """
give gives geben gibt tv p -
show shows zeigen zeigt tvar p -
bring brings bringen bringt t p -
send sends schicken schickt t p -
lend lends leihen leiht tv p -
"""
_INTRANSITIVE_VERBS = """
sleep sleeps schlafen schläft - pa L
work works arbeiten arbeitet - p LWF
laugh laughs lachen lacht - p LW
cry cries weinen weint - p L
sing sings singen singt - p LWF
dance dances tanzen tanzt - p LWF
wait waits warten wartet - pa LW
run runs rennen rennt - pa WT
swim swims schwimmen schwimmt - pa W
play plays spielen spielt - pa LW
cook cooks kochen kocht - p LWF
travel travels reisen reist - p WT
sit sits sitzen sitzt - pa LW
stay stays bleiben bleibt - pa LW
dream dreams träumen träumt - pa L
fight fights kämpfen kämpft - pa LWF
pray prays beten betet - p LWF
"""
_SEPARABLE_INTRANSITIVE_VERBS = """
get_up gets auf-stehen steht - pa -
arrive arrives an-kommen kommt - pa W
come_back comes zurück-kommen kommt - pa W
come_along comes mit-kommen kommt - pa -
fall_asleep falls ein-schlafen schläft - pa L
wake_up wakes auf-wachen wacht - pa L
go_away goes weg-gehen geht - pa W
watch_television watches fern-sehen sieht - p W
listen listens zu-hören hört - p -
give_up gives auf-geben gibt - p -
"""


def _nouns() -> tuple[Noun, ...]:
    return tuple(Noun(*line.split()) for line in _NOUN_TABLE.strip().splitlines())


def _adjectives() -> tuple[Adjective, ...]:
    rows = (line.split() for line in _ADJECTIVE_TABLE.strip().splitlines())
    return tuple(Adjective(row[0], row[1], row[3] if len(row) > 3 else row[1], row[2]) for row in rows)


def _verbs(table: str, kind: str) -> tuple[Verb, ...]:
    verbs = []
    for line in table.strip().splitlines():
        en, en_3sg, de, de_3sg, objects, subjects, places = line.split()
        prefix, _, stem = de.rpartition("-")
        first = stem[:-1] + "e" if stem.endswith("ern") else stem[:-2] + "e"
        verbs.append(Verb(en, en_3sg, kind, prefix, stem, first, de_3sg, objects, subjects, places))
    return tuple(verbs)


NOUNS = _nouns()
ADJECTIVES = _adjectives()
VERBS: dict[str, tuple[Verb, ...]] = {
    "acc": _verbs(_ACCUSATIVE_VERBS, "acc"),
    "sep-acc": _verbs(_SEPARABLE_ACCUSATIVE_VERBS, "acc"),
    "dat": _verbs(_DATIVE_VERBS, "dat"),
    "dit": _verbs(_DITRANSITIVE_VERBS, "dit"),
    "int": _verbs(_INTRANSITIVE_VERBS, "int"),
    "sep-int": _verbs(_SEPARABLE_INTRANSITIVE_VERBS, "int"),
}
BE = Verb("be", "is", "be", "", "sein", "bin", "ist", "-", "patvr", "L")
# Verbs that govern a clause: ``know`` and ``ask`` take ``whether``, the others ``that``, ``know`` either.
KNOW = Verb("know", "knows", "int", "", "wissen", "weiß", "weiß", "-", "p", "-")
ASK = next(verb for verb in VERBS["acc"] if verb.en == "ask")
THAT_VERBS = (
    KNOW,
    Verb("say", "says", "int", "", "sagen", "sage", "sagt", "-", "p", "-"),
    Verb("believe", "believes", "int", "", "glauben", "glaube", "glaubt", "-", "p", "-"),
    Verb("hope", "hopes", "int", "", "hoffen", "hoffe", "hofft", "-", "p", "-"),
    Verb("think", "thinks", "int", "", "denken", "denke", "denkt", "-", "p", "-"),
)
MODALS = (
    Auxiliary("can", "kann", "kann", "können", True),
    Auxiliary("must", "muss", "muss", "müssen", False),
    Auxiliary("should", "sollte", "sollte", "sollten", True),
    Auxiliary("may", "darf", "darf", "dürfen", False),
    Auxiliary("want", "will", "will", "wollen", True),
)
FUTURE = Auxiliary("will", "werde", "wird", "werden", True)
ADVERBS = (
    Adverb("today", "heute", "time"),
    Adverb("now", "jetzt", "time"),
    Adverb("tonight", "heute Abend", "time"),
    Adverb("every day", "jeden Tag", "time"),
    Adverb("on Monday", "am Montag", "time"),
    Adverb("on Friday", "am Freitag", "time"),
    Adverb("on Sunday", "am Sonntag", "time"),
    Adverb("in the morning", "am Morgen", "time"),
    Adverb("in the evening", "am Abend", "time"),
    Adverb("soon", "bald", "later"),
    Adverb("tomorrow", "morgen", "later"),
    Adverb("often", "oft", "freq"),
    Adverb("always", "immer", "freq"),
    Adverb("sometimes", "manchmal", "freq"),
    Adverb("rarely", "selten", "freq"),
    Adverb("never", "nie", "freq"),
)
PREPOSITIONS = (
    Preposition("in", "in", "dat", "r", "L"),
    Preposition("behind", "hinter", "dat", "b", "L"),
    Preposition("in front of", "vor", "dat", "b", "L"),
    Preposition("next to", "neben", "dat", "b", "L"),
    Preposition("with", "mit", "dat", "pa", "W"),
    Preposition("without", "ohne", "acc", "p", "W"),
    Preposition("for", "für", "acc", "p", "F"),
    Preposition("through", "durch", "acc", "r", "T"),
)
CONTRACTIONS = {("in", "dem"): "im"}
PRONOUNS = (
    PronounForms("I", "me", "ich", "mich", "mir", "1sg"),
    PronounForms("he", "him", "er", "ihn", "ihm", "3sg"),
    PronounForms("she", "her", "sie", "sie", "ihr", "3sg"),
    PronounForms("we", "us", "wir", "uns", "uns", "pl"),
    PronounForms("they", "them", "sie", "sie", "ihnen", "pl"),
)
NAMES = (
    "Anna",
    "Peter",
    "Maria",
    "Paul",
    "Emma",
    "Jonas",
    "Laura",
    "Felix",
    "Julia",
    "Max",
    "Lena",
    "Tom",
    "Sophie",
    "David",
)
NUMERALS = {
    "two": "zwei",
    "three": "drei",
    "four": "vier",
    "five": "fünf",
    "six": "sechs",
    "seven": "sieben",
    "eight": "acht",
    "nine": "neun",
    "ten": "zehn",
}
POSSESSIVES = {"my": "mein", "his": "sein", "our": "unser", "their": "ihr"}
WH_WORDS = {"who": "wer", "what": "was", "where": "wo", "when": "wann", "why": "warum"}
# Conjunctions of adverbial clauses; those of the second table take no auxiliary.
FREE_CONJUNCTIONS = {"because": "weil", "although": "obwohl"}
PRESENT_CONJUNCTIONS = {"if": "wenn", "while": "während", "before": "bevor"}
COMPLEMENTIZERS = {"that": "dass", "whether": "ob"}
SUBORDINATORS = FREE_CONJUNCTIONS | PRESENT_CONJUNCTIONS | COMPLEMENTIZERS
COORDINATORS = {"and": "und", "but": "aber"}
OTHER_LEXEMES = ("the", "a", "this", "any", "not", "do", "very")
