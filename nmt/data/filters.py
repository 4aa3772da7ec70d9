"""`[data] filters`: the rules of `nmt data check` by which a training run drops pairs."""

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from nmt.config import DataConfig
from nmt.data.judge import judge_all, learn_corpus, portions, sample_of
from nmt.data.rules import FILTERS
from nmt.data.shifts import ShiftFinder
from nmt.data.sources import Chunk

_SEED = 1  # of the sample: the same text is judged alike in every run


def filtered(
    chunks: Callable[[], Iterable[Chunk]], config: DataConfig, keep: NDArray[np.bool_], workers: int
) -> tuple[NDArray[np.bool_], Counter[str]]:
    """Which of the kept pairs pass the filters of `config`, and how many each filter dropped.

    The text is read twice. A pair counts for the first of the rules that drop it, in the order of `FILTERS`. Memory:
    a byte a pair.

    Args:
        chunks: reads the text from its beginning.
        keep: bool (pairs,), False where a pair was dropped before.
    Raises: DataError, StorageError; NmtError (a worker process was killed).
    """
    wanted: list[str] = [name for name in FILTERS if name in config.filters]
    passed = len(wanted)
    first_rule = np.full(len(keep), passed, np.uint8)
    shifts, position = ShiftFinder(), 0
    learnt = learn_corpus(*sample_of(chunks(), _SEED), config)
    for judged in judge_all(portions(chunks()), learnt, wanted, workers):
        here = first_rule[position : position + len(judged.src_lengths)]
        for rule, flags in judged.flags.items():
            here[flags] = np.minimum(here[flags], wanted.index(rule))
        if "misaligned" in wanted:
            shifts.add(judged.scores)
        position += len(here)
    for stretch in shifts.stretches():
        part = first_rule[stretch.start - 1 : stretch.end]
        np.minimum(part, wanted.index("misaligned"), out=part)
    dropped = np.bincount(first_rule[keep], minlength=passed + 1)
    counts = Counter({rule: int(dropped[number]) for number, rule in enumerate(wanted)})
    return keep & (first_rule == passed), counts
