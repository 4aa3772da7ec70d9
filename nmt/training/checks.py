"""What must never go on silently: a gradient that is not finite, a hopeless loss, ranks whose weights differ.

Each check stops the run before weights or checkpoints are touched, in all ranks alike.
"""

import math
from collections import Counter
from collections.abc import Mapping

from torch import Tensor, nn

from nmt.data.batching import Ids
from nmt.errors import DivergedError, NmtError
from nmt.training.distributed import Ranks, checksum

_MOST_PAIRS = 20  # named in a message


def not_finite(
    update: int, rate: float, micro_batches: Mapping[int, Ids], losses: Mapping[int, Tensor], ranks: Ranks
) -> NmtError:
    """The error of an update whose gradient is not finite. It names the pairs, of all ranks, that may have caused it.

    Args:
        update: the one that is not made.
        micro_batches: pairs of this rank's micro-batches, by number.
        losses: theirs; where one is not finite, its pairs alone are named.
    """
    guilty = [number for number, loss in losses.items() if not math.isfinite(float(loss))]
    suspects = [pair for number in guilty or micro_batches for pair in micro_batches[number].tolist()]
    of_ranks = ranks.collect([str(len(guilty)), *map(str, suspects[:_MOST_PAIRS])])
    in_loss = any(int(count) for count, *_ in of_ranks)
    blamed = [named for count, *named in of_ranks if named and (int(count) or not in_loss)]
    pairs = [int(pair) for named in blamed for pair in named[: max(1, _MOST_PAIRS // len(blamed))]]
    return ranks.agreed(
        DivergedError(
            f"The {'loss' if in_loss else 'gradient'} of update {update:,} is not finite (learning rate {rate:.3g}, "
            f"training pairs {pairs} …); the weights were not touched and what was saved stands. A "
            f"lower training.learning_rate, a longer warmup_updates or clip_norm = 1.0 is the usual cure."
        )
    )


def refuse_hopeless(loss: float, vocab_size: int, update: int, ranks: Ranks, *, young: bool) -> None:
    """Raises: DivergedError, for a validation loss of a model that has lost everything.

    A loss above that of guessing among twice the vocabulary is beyond recovery (Sockeye's rule), unless the model is
    young.
    """
    hopeless = math.log(2 * vocab_size)
    if math.isfinite(loss) and (young or loss <= hopeless):
        return
    raise ranks.agreed(
        DivergedError(
            f"The validation loss at update {update:,} is {loss:.3g}, worse than blind guessing ({hopeless:.3g}): "
            f"training has diverged. What was saved stands. Begin anew with a lower training.learning_rate or a "
            f"longer warmup_updates."
        )
    )


def refuse_drift(model: nn.Module, update: int, ranks: Ranks) -> None:
    """Raises: DivergedError, if the ranks do not hold the same weights."""
    if ranks.world == 1:
        return
    sums = [of_rank[0] for of_rank in ranks.collect([str(checksum(model))])]
    usual, _ = Counter(sums).most_common(1)[0]
    drifted = [str(rank) for rank, of_rank in enumerate(sums) if of_rank != usual]
    if drifted:
        raise ranks.agreed(
            DivergedError(
                f"At update {update:,} the weights of rank {', '.join(drifted)} differ from those of the others, which "
                f"must not happen: suspect that machine's memory or GPU. The last checkpoint was written when all were "
                f"equal; the same command goes on from there."
            )
        )
