"""Stretches of a corpus whose target is some lines early or late: where they start, end, and by how much.

Page's CUSUM (1954): along the corpus the evidence for one shift against no shift is added up, never below zero. It
climbs within a stretch that is shifted so and stays near zero elsewhere; where it began to climb the stretch starts,
where it was highest the stretch ends.
"""

from dataclasses import dataclass

import numpy as np

from nmt.data.evidence import MAX_SHIFT, SHIFTS, Floats

_MOST_A_LINE = 6.0  # evidence that one line may give for or against a shift
_ENOUGH = 25.0  # of a stretch; less is found among lines that are nearly the same

UNSHIFTED = SHIFTS.index(0)


@dataclass(frozen=True)
class Stretch:
    """Lines `start` … `end` (from 1, inclusive) are translated `shift` lines further; below 0: earlier."""

    start: int
    end: int
    shift: int
    evidence: float

    def __str__(self) -> str:
        return self.moved(0)

    def moved(self, offset: int) -> str:
        """In words, with line numbers as counted from elsewhere."""
        way = "late" if self.shift > 0 else "early"
        lines = "line" if abs(self.shift) == 1 else "lines"
        number = f"{abs(self.shift)} or more" if abs(self.shift) == MAX_SHIFT else f"{abs(self.shift)}"
        return f"lines {self.start + offset:,}-{self.end + offset:,}: the target is {number} {lines} {way}"


class _Cusum:
    """The sum of one shift, over one line after the other."""

    def __init__(self, shift: int) -> None:
        self.found: list[Stretch] = []
        self._shift = shift
        self._sum = self._peak = 0.0
        self._start = self._end = 0

    def add(self, first_line: int, evidence: list[float]) -> None:
        for line, gain in enumerate(evidence, first_line):
            if gain > 0 and self._sum == 0:
                self._start = line
            self._sum = max(0.0, self._sum + gain)
            if self._sum > self._peak:
                self._peak, self._end = self._sum, line
            elif self._peak and (self._sum == 0 or self._peak - self._sum > _ENOUGH):
                self.close()

    def close(self) -> None:
        """The stretch is over, if there was one."""
        if self._peak > _ENOUGH:
            self.found.append(Stretch(self._start, self._end, self._shift, self._peak))
        self._sum = self._peak = 0.0


class ShiftFinder:
    """Takes the scores of a corpus in order and finds its stretches; memory does not depend on its length."""

    def __init__(self) -> None:
        self._sums = {row: _Cusum(shift) for row, shift in enumerate(SHIFTS) if shift}
        self._next_line = 1

    def add(self, scores: Floats) -> None:
        """The next lines: their scores by shift, (shifts, lines)."""
        # Unshifted lines that say nothing count as good as a random pair: 0.
        unshifted = np.maximum(scores[UNSHIFTED], 0)
        for row, cusum in self._sums.items():
            evidence = np.clip(scores[row] - unshifted, -_MOST_A_LINE, _MOST_A_LINE)
            cusum.add(self._next_line, evidence.tolist())
        self._next_line += scores.shape[1]

    def stretches(self) -> list[Stretch]:
        """All stretches, in order. Of those that overlap the one with the most evidence stands."""
        for cusum in self._sums.values():
            cusum.close()
        candidates = sorted(
            (stretch for cusum in self._sums.values() for stretch in cusum.found),
            key=lambda stretch: -stretch.evidence,
        )
        chosen: list[Stretch] = []
        for stretch in candidates:
            if all(stretch.end < other.start or other.end < stretch.start for other in chosen):
                chosen.append(stretch)
        return sorted(chosen, key=lambda stretch: stretch.start)
