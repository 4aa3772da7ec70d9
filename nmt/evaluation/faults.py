"""Signs that translations have gone wrong, which a score hides."""

from collections.abc import Sequence

NGRAM = 4  # pieces; in a row twice, they are the sign of a model that goes round in circles


def repeated_share(all_ids: Sequence[Sequence[int]]) -> float:
    """The share, from 0 to 1, of texts in which `NGRAM` pieces in a row come again."""
    ngrams = [[tuple(ids[i : i + NGRAM]) for i in range(len(ids) - NGRAM + 1)] for ids in all_ids]
    return sum(len(set(each)) < len(each) for each in ngrams) / max(1, len(ngrams))


def length_ratio(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Characters of the hypotheses for each of the references.

    In characters: rare words, which a model avoids, have more pieces.
    """
    return sum(map(len, hypotheses)) / max(1, sum(map(len, references)))
