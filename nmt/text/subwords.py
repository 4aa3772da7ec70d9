"""Subword sampling: other pieces of the same text at every epoch (BPE-dropout, Provilkov et al. 2020; unigram, Kudo
2018).

The pieces of a pair are a function of (seed, epoch, pair) and of nothing else. SentencePiece samples too, but mixes a
number of its own into every seed, another one in each process: a resumed run would see other pieces. So what is sampled
here are the pieces that SentencePiece found: those between two fixed ones (a control piece, a byte, a user symbol), a
word in turn, are divided anew. Text that is decoded from them is the same, whatever was drawn.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import accumulate, chain, cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.errors import ConfigError
from nmt.text.model_proto import NORMAL, model_type, piece_table
from nmt.text.tokenizer import Tokenizer

_WORD_START = "▁"
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_CACHED_LATTICES, _CACHED_CHARACTERS = 1 << 14, 24  # words, and how long they may be
_CACHED_NODES = 1 << 18
_DRAWS = {"bpe": 4, "unigram": 1}  # random numbers for a word, by its characters; many dropouts take them again

Numbers = NDArray[np.int64]


class SubwordSampling:
    """Samples the pieces of training pairs, each side by the option that goes with the type of its model.

    Args:
        bpe_dropout: the probability that a merge of BPE is left out; 0: none.
        unigram_alpha: a division of a word has a probability in proportion to its own to the power of this: a small
            one makes all divisions alike, a large one the best one certain; 0: nothing is sampled.
    Raises: ConfigError (an option for a type that neither side has).
    """

    def __init__(self, tokenizer: Tokenizer, bpe_dropout: float, unigram_alpha: float, seed: int) -> None:
        amounts = {"bpe": bpe_dropout, "unigram": unigram_alpha}
        types = {"src": model_type(tokenizer.src_model), "tgt": model_type(tokenizer.tgt_model)}
        for kind, key in (("bpe", "bpe_dropout"), ("unigram", "unigram_alpha")):
            if amounts[kind] and kind not in types.values():
                raise ConfigError(
                    f"training.{key} = {amounts[kind]} is for a {kind} tokenizer; this one is {types['src']}"
                    + ("." if types["src"] == types["tgt"] else f" and {types['tgt']}.")
                )
        self._seed = seed
        self._dividers: dict[str, _Divider | None] = {}
        models = {"src": tokenizer.src_model, "tgt": tokenizer.tgt_model}
        for side, kind in types.items():
            amount = amounts.get(kind, 0.0)
            shared = self._dividers.get("src") if tokenizer.joint else None
            self._dividers[side] = shared or (_Divider(models[side], kind, amount) if amount else None)

    def __call__(
        self, side: str, ids: NDArray[Any], lengths: Numbers, pairs: Numbers, epoch: int
    ) -> tuple[NDArray[Any], Numbers]:
        """The ids of some pairs on one side, end to end, divided anew, and how many each pair has.

        Args:
            side: `src` or `tgt`.
            ids, lengths: as `TokenCache.gather` gives them.
            pairs: numbers of the pairs in the cache.
        """
        divider = self._dividers[side]
        if divider is None or not len(ids):
            return ids, lengths
        sequence = np.random.SeedSequence([self._seed, epoch, side == "tgt"])
        key = sequence.generate_state(1, np.uint64)
        return divider(ids, lengths, _mixed(key + (pairs.astype(np.uint64) + np.uint64(1)) * _GOLDEN))


class _Divider:
    """Divides the words of one model anew."""

    def __init__(self, model: bytes, kind: str, amount: float) -> None:
        table = piece_table(model)
        self._kind, self._amount = kind, amount
        self._surfaces = [piece for piece, _, _ in table]
        normal = [(piece, number, score) for number, (piece, score, type) in enumerate(table) if type == NORMAL]
        self._ids = {piece: number for piece, number, _ in normal}
        self._scores = {piece: score for piece, _, score in normal}
        self._longest = max(map(len, self._ids), default=0)
        self._fixed = np.array([type != NORMAL for _, _, type in table])
        self._opens = self._fixed | np.array([piece.startswith(_WORD_START) for piece in self._surfaces])
        self._characters = np.where(self._fixed, 0, [len(piece) for piece in self._surfaces])
        self._lattices: dict[str, list[_Node]] = {}
        self._known: dict[
            str, Any
        ] = {}  # by word: lists of what follows a merge that is made, and one that is left out
        self._nodes = 0

    def __call__(self, ids: NDArray[Any], lengths: Numbers, keys: NDArray[np.uint64]) -> tuple[NDArray[Any], Numbers]:
        """See `SubwordSampling`. `keys`: where the random numbers of each pair begin."""
        opens = self._opens[ids]
        opens[1:] |= self._fixed[ids[:-1]]  # EOS among them, which ends the sentence before
        opens[0] = True
        starts = np.flatnonzero(opens)
        sizes = np.diff(starts, append=len(ids))  # of words, in pieces
        characters = np.add.reduceat(self._characters[ids], starts)
        draws = characters * _DRAWS[self._kind]
        first_draws = np.cumsum(draws) - draws
        sentences = np.cumsum(lengths) - lengths  # the piece that each begins with
        words_of = np.diff(np.searchsorted(starts, sentences), append=len(starts))
        random = _streams(keys, np.add.reduceat(draws, np.searchsorted(starts, sentences)))
        if self._kind == "bpe":
            left_out = random < np.uint64(self._amount * 2.0**64)
            # Each merge that makes the plain pieces takes one number: without one left out they stay as they are.
            before = np.concatenate([[0], np.cumsum(left_out)])
            merges = np.maximum(characters - sizes, 0)
            changed = np.flatnonzero(before[first_draws + merges] > before[first_draws])
            numbers: list[Any] = left_out.tolist()
        else:
            changed = np.flatnonzero(characters > 1)
            numbers = (random * 2.0**-64).tolist()
        places = (each[changed].tolist() for each in (starts, sizes, first_draws, draws))
        pieces, divided = ids.tolist(), []
        for start, size, first, many in zip(*places, strict=True):
            divided.append(self._divide(pieces[start : start + size], numbers[first : first + many]))
        new_sizes = sizes.copy()
        new_sizes[changed] = list(map(len, divided))
        replaced = np.zeros(len(starts), dtype=bool)
        replaced[changed] = True
        result = np.empty(int(new_sizes.sum()), dtype=ids.dtype)
        result[np.repeat(~replaced, new_sizes)] = ids[np.repeat(~replaced, sizes)]
        result[np.repeat(replaced, new_sizes)] = np.fromiter(chain.from_iterable(divided), dtype=ids.dtype)
        new_lengths: Numbers = np.add.reduceat(new_sizes, np.cumsum(words_of) - words_of).astype(np.int64)
        return result, new_lengths

    def _divide(self, ids: list[int], random: list[Any]) -> Sequence[int]:
        word = "".join([self._surfaces[number] for number in ids])
        if self._kind == "unigram":
            return self._drawn(word, random)
        node = self._known.get(word)
        for left_out in random:
            if type(node) is not list:
                break
            node = node[left_out]
        return node if type(node) is tuple else self._note(word, *self._merged(word, ids, random))

    def _note(self, word: str, merged: Sequence[int], taken: Sequence[bool]) -> tuple[int, ...]:
        """Keep what these decisions make of a word, in a tree of them."""
        if len(word) <= _CACHED_CHARACTERS:
            if self._nodes > _CACHED_NODES:
                self._known.clear()
                self._nodes = 0
            node = self._known.setdefault(word, [None, None])
            for each in taken[:-1]:
                if node[each] is None:
                    node[each] = [None, None]
                node = node[each]
            node[taken[-1]] = tuple(merged)
            self._nodes += len(taken)
        return tuple(merged)

    def _merged(self, word: str, ids: list[int], left_out: Sequence[bool]) -> tuple[list[int], list[bool]]:
        """SentencePiece's merges, best score first, some left out: such a one may come again after the next merge.

        Returns: the pieces (`ids` if a character that is no piece were left), and the decisions that were made.
        """
        symbols = list(word)
        after, before = list(range(1, len(symbols) + 1)), list(range(-1, len(symbols) - 1))
        agenda: list[tuple[float, int, int, int]] = []
        scores, draw = self._scores, cycle(left_out)

        def consider(left: int, right: int) -> None:
            score = scores.get(symbols[left] + symbols[right])
            if score is not None:
                heappush(agenda, (-score, left, right, len(symbols[left]) + len(symbols[right])))

        for left in range(len(symbols) - 1):
            consider(left, left + 1)
        taken: list[bool] = []
        aside: list[tuple[float, int, int, int]] = []
        while agenda:
            merge = heappop(agenda)
            _, left, right, length = merge
            if not symbols[left] or not symbols[right] or len(symbols[left]) + len(symbols[right]) != length:
                continue  # of symbols that have been merged otherwise
            taken.append(next(draw))
            if taken[-1]:
                aside.append(merge)
                continue
            symbols[left] += symbols[right]
            symbols[right] = ""
            after[left] = following = after[right]
            if following < len(symbols):
                before[following] = left
                consider(left, following)
            if before[left] >= 0:
                consider(before[left], left)
            while aside:
                heappush(agenda, aside.pop())
        merged = [self._ids.get(symbol, -1) for symbol in symbols if symbol]
        return (ids if -1 in merged else merged), taken

    def _drawn(self, word: str, random: Sequence[float]) -> list[int]:
        """Pieces drawn from the last one to the first, each by the probability of all that may stand before it."""
        lattice = self._lattices.get(word) or self._lattice(word)
        ids: list[int] = []
        end, draw = len(word), iter(random)
        while end:
            starts, pieces, upto = lattice[end - 1]
            chosen = bisect_right(upto, next(draw))
            ids.append(pieces[chosen])
            end = starts[chosen]
        return ids[::-1]

    def _lattice(self, word: str) -> "list[_Node]":
        """By each end: where pieces that end there begin, their ids, and their probabilities added up, but the last."""
        lattice: list[_Node] = []
        sums = [0.0]  # log of the probabilities of all divisions of the word up to there
        for end in range(1, len(word) + 1):
            reachable = [start for start in range(max(0, end - self._longest), end) if sums[start] > -math.inf]
            starts = [start for start in reachable if word[start:end] in self._ids]
            logs = [sums[start] + self._amount * self._scores[word[start:end]] for start in starts]
            most = max(logs, default=-math.inf)
            upto = list(accumulate(math.exp(log - most) for log in logs))
            sums.append(most + math.log(upto[-1]) if upto else -math.inf)
            bounds = [each / upto[-1] for each in upto[:-1]]
            lattice.append((starts, [self._ids[word[start:end]] for start in starts], bounds))
        if len(word) <= _CACHED_CHARACTERS:
            if len(self._lattices) >= _CACHED_LATTICES:
                self._lattices.clear()
            self._lattices[word] = lattice
        return lattice


_Node = tuple[list[int], list[int], list[float]]


def _streams(keys: NDArray[np.uint64], counts: Numbers) -> NDArray[np.uint64]:
    """The first `counts` random numbers of each of these streams, end to end."""
    places = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return _mixed(np.repeat(keys, counts) + (places.astype(np.uint64) + np.uint64(1)) * _GOLDEN)


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output function of SplitMix64 (Steele et al. 2014): each number from its place alone."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
