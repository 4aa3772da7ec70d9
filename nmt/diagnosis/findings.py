"""What a check found, and how it is told."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum


class Level(StrEnum):
    """How bad it is. `skipped`: the check does not apply to this model."""

    ok = "ok"
    skipped = "skipped"
    suspicious = "suspicious"
    broken = "broken"


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        found: what was looked at, and what was seen.
        advice: the likely cause and what to do; empty if nothing is wrong.
        numbers: what was measured, for programs.
    """

    level: Level
    found: str
    advice: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)


Findings = dict[str, Finding]  # by the name of the check, in the order in which they ran


def ok(found: str, **numbers: float) -> Finding:
    """Nothing is wrong."""
    return Finding(Level.ok, found, numbers=numbers)


def skipped(why: str) -> Finding:
    """The check does not apply."""
    return Finding(Level.skipped, why)


def suspicious(found: str, advice: str, **numbers: float) -> Finding:
    """Unusual; it may be meant."""
    return Finding(Level.suspicious, found, advice, numbers)


def broken(found: str, advice: str, **numbers: float) -> Finding:
    """Wrong in every model."""
    return Finding(Level.broken, found, advice, numbers)


def is_broken(findings: Findings) -> bool:
    """Whether any of them is."""
    return any(finding.level == Level.broken for finding in findings.values())


def as_lines(findings: Findings) -> list[str]:
    """For the terminal: one line each, `level  check: found. Advice`."""
    return [f"{each.level:<10}  {check}: {each.found}{_sentence(each.advice)}" for check, each in findings.items()]


def _sentence(advice: str) -> str:
    return f". {advice[0].upper()}{advice[1:]}" if advice else ""


def as_records(findings: Findings) -> list[dict[str, object]]:
    """For JSON, which has neither NaN nor infinity."""
    records = [{"check": check, **asdict(finding)} for check, finding in findings.items()]
    for record in records:
        record["numbers"] = {name: n if math.isfinite(n) else None for name, n in record["numbers"].items()}
    return records


def some(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def counted(number: int, noun: str) -> str:
    """As `1 head`, `2 heads`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
