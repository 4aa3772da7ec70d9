"""The rules of `nmt data check`: what each means and the way out. Each is declared here once."""

from dataclasses import dataclass
from typing import Literal, get_args

from nmt.config import Filter

Severity = Literal["wrong", "look"]


@dataclass(frozen=True)
class Rule:
    """One thing that may be wrong with a pair of lines.

    Attributes:
        severity: "wrong" most likely, or worth a "look". What training refuses is in `Report.refusals`.
    """

    name: str
    severity: Severity
    meaning: str
    way_out: str


def _droppable(name: Filter, severity: Severity, meaning: str, way_out: str = "") -> Rule:
    return Rule(name, severity, meaning, f'{way_out}drop them: [data] filters = ["{name}"]')


RULES = {
    rule.name: rule
    for rule in (
        Rule(
            "separators",
            "look",
            "tabs, U+2028, U+0085, lone CR and the like inside lines",
            "nothing: they become spaces",
        ),
        Rule("controls", "look", "control characters", "nothing: they are dropped"),
        Rule("blank both", "look", "both sides are blank", "nothing: training drops them"),
        Rule("blank side", "wrong", "one side is blank", "training drops them; many of them speak for lost lines"),
        _droppable(
            "encoding",
            "wrong",
            "invalid UTF-8, or U+FFFD left by an earlier conversion",
            "convert the file from its own encoding (iconv), or ",
        ),
        _droppable("mojibake", "wrong", "UTF-8 read as Latin-1 and written again, as in Ã¼", "repair it (ftfy), or "),
        _droppable("identical", "wrong", "both sides are the same text: untranslated"),
        _droppable("too long", "look", "a side is too long to train on", "split it into sentences, or "),
        _droppable("ratio", "wrong", "one side is far longer than the corpus' own ratio lets expect"),
        _droppable("script", "wrong", "most letters are not of the language's script"),
        _droppable(
            "swapped", "wrong", "each side is in the other's language", "exchange the two sides of these lines, or "
        ),
        _droppable("language", "wrong", "one side is not in its language"),
        _droppable(
            "misaligned",
            "wrong",
            "a stretch of lines is translated some lines earlier or later",
            "move one side by the offset, or ",
        ),
        _droppable("unrelated", "look", "the sides share fewer words than two random lines do"),
        _droppable("numbers", "look", "numbers differ between the sides"),
        _droppable("placeholders", "look", "URLs, addresses, variables such as %s or {0} differ between the sides"),
        _droppable("markup", "look", "HTML tags or entities are on one side and not on the other"),
        _droppable("garbage", "wrong", "symbols or digits instead of text, or the same words again and again"),
        Rule("duplicate", "look", "the pair stood before", "nothing: training keeps the first"),
        Rule(
            "source again",
            "look",
            "the source stood before with another target",
            "nothing, if these are several translations",
        ),
        Rule("target again", "look", "the target stood before with another source", "nothing, if it is a short answer"),
        Rule(
            "pair in valid",
            "wrong",
            "the pair is in the validation text too: its scores will flatter",
            "take it out of the training text",
        ),
        Rule("source in valid", "look", "the source is in the validation text too", "take it out of the training text"),
        Rule(
            "pair in test",
            "wrong",
            "the pair is in the test text too: its scores will flatter",
            "take it out of the training text",
        ),
        Rule("source in test", "look", "the source is in the test text too", "take it out of the training text"),
    )
}
FILTERS: tuple[str, ...] = get_args(Filter)
