"""Which layer and head of a model is looked at for word alignment: by gold links, or by how two directions agree."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from nmt.alignment.gold import GoldLinks, agreement, quality
from nmt.alignment.links import Links, flipped

Choice = TypeVar("Choice")


def best_by_gold(found: Mapping[Choice, Sequence[Links]], gold: Sequence[GoldLinks]) -> Choice:
    """The choice whose links have the lowest error rate; the first one of equals."""
    return min(found, key=lambda choice: quality(found[choice], gold).aer)


def best_by_agreement(
    forward: Mapping[Choice, Sequence[Links]], reverse: Mapping[Choice, Sequence[Links]]
) -> tuple[Choice, Choice]:
    """The choices of two models, one for each direction, whose links agree most; the first ones of equals.

    No gold is needed: two models that see the same text in opposite directions agree where they are right. (Chen et al.
    2020 choose the layer that way.)

    Args:
        reverse: of the model that translates target to source, its own way round.
    """
    turned = {choice: [flipped(links) for links in found] for choice, found in reverse.items()}
    return max(
        ((one, other) for one in forward for other in turned),
        key=lambda pair: agreement(forward[pair[0]], turned[pair[1]]),
    )
