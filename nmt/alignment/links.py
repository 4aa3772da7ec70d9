"""Word alignments as links between the white-space tokens of two texts: out of attention, and out of two directions.

A link is (source token, target token), both counted from 0, as in Pharaoh's `i-j`. Tokens are those of `str.split()`.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.text.tokenizer import Span

Link = tuple[int, int]
Links = frozenset[Link]
Shares = tuple[NDArray[np.float64], int]  # see `piece_shares`

_NEIGHBOURS = [(-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)]


def token_numbers(text: str) -> NDArray[np.int64]:
    """The token that each character of a text belongs to; -1: it is white space."""
    numbers = np.full(len(text), -1)
    for number, token in enumerate(re.finditer(r"\S+", text)):
        numbers[token.start() : token.end()] = number
    return numbers


def piece_shares(spans: Sequence[Span], numbers: NDArray[np.int64]) -> Shares:
    """How much of each piece belongs to each token: an array (pieces, tokens), and the number of its first token.

    A piece is its token's; one that covers several is theirs by their characters. One that covers none, as the first
    bytes of a character or a "▁" alone, goes with the piece behind it.

    Args:
        spans: of the pieces in the text, in order; negative ones are of pieces that stand for no text.
        numbers: see `token_numbers`.
    """
    covered = [numbers[max(start, 0) : max(end, 0)] for start, end in spans]
    covered = [tokens[tokens >= 0] for tokens in covered]
    all_tokens = np.concatenate([*covered, np.zeros(0, dtype=np.int64)])
    first, last = (int(all_tokens.min()), int(all_tokens.max())) if len(all_tokens) else (0, -1)
    shares = np.zeros((len(spans), last - first + 1))
    for place in reversed(range(len(spans))):
        if len(covered[place]):
            counts = np.bincount(covered[place] - first, minlength=shares.shape[1])
            shares[place] = counts / counts.sum()
        elif spans[place][0] >= 0 and place + 1 < len(spans):
            shares[place] = shares[place + 1]
    return shares, first


def links_of(
    weights: NDArray[np.floating[Any]],
    src: Shares,
    tgt: Shares,
    threshold: float = 0.0,
) -> Links:
    """Each target token with the source token that it looks at most.

    Args:
        weights: (target pieces, source pieces), EOS left out.
        src, tgt: see `piece_shares`. Source pieces are summed and target pieces averaged.
        threshold: a token that looks at none as much as this has no link.
    """
    (src_shares, first_src), (tgt_shares, first_tgt) = src, tgt
    if not src_shares.size or not tgt_shares.size:
        return frozenset()
    pieces = tgt_shares.sum(0)
    of_tokens = (tgt_shares.T @ weights @ src_shares) / np.maximum(pieces, 1e-9)[:, None]
    chosen, most = of_tokens.argmax(1), of_tokens.max(1)
    linked = (pieces > 0) & (most > 0) & (most >= threshold)
    return frozenset((first_src + int(chosen[j]), first_tgt + int(j)) for j in np.flatnonzero(linked))


def flipped(links: Links) -> Links:
    """The same, of the other direction: source and target change places."""
    return frozenset((j, i) for i, j in links)


def intersection(forward: Links, reverse: Links) -> Links:
    """What both directions have."""
    return forward & reverse


def union(forward: Links, reverse: Links) -> Links:
    """What either direction has."""
    return forward | reverse


def grow_diag(forward: Links, reverse: Links) -> Links:
    """The intersection, and links of the union next to it (diagonally too) of a token that has none yet.

    In order of their tokens, again and again until nothing is added. (Koehn, Och and Marcu 2003; Och and Ney 2003.)
    """
    both, either = forward & reverse, forward | reverse
    found, rows, columns = set(both), {i for i, _ in both}, {j for _, j in both}
    grows = True
    while grows:
        grows = False
        for i, j in sorted(either):
            if (i, j) not in found:
                continue
            for step_i, step_j in _NEIGHBOURS:
                near = i + step_i, j + step_j
                if near in either and near not in found and (near[0] not in rows or near[1] not in columns):
                    found.add(near)
                    rows.add(near[0])
                    columns.add(near[1])
                    grows = True
    return frozenset(found)


def grow_diag_final(forward: Links, reverse: Links) -> Links:
    """`grow_diag`, then links of either direction of which one token at least has none yet."""
    return _final(grow_diag(forward, reverse), (forward, reverse), either=True)


def grow_diag_final_and(forward: Links, reverse: Links) -> Links:
    """`grow_diag`, then links of either direction of which both tokens have none yet."""
    return _final(grow_diag(forward, reverse), (forward, reverse), either=False)


def _final(links: Links, directions: Sequence[Links], *, either: bool) -> Links:
    found, rows, columns = set(links), {i for i, _ in links}, {j for _, j in links}
    for direction in directions:
        for i, j in sorted(direction):
            free = (i not in rows, j not in columns)
            if any(free) if either else all(free):
                found.add((i, j))
                rows.add(i)
                columns.add(j)
    return frozenset(found)


SYMMETRISED = {
    "intersection": intersection,
    "union": union,
    "grow-diag": grow_diag,
    "grow-diag-final": grow_diag_final,
    "grow-diag-final-and": grow_diag_final_and,
}
