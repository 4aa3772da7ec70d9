"""Which layer and head of a model is looked at for word alignment: by gold links, or by how two directions agree."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from nmt.alignment.gold import GoldLinks, agreement, quality
from nmt.alignment.links import Links

Choice = TypeVar("Choice")


def best_by_gold(found: Mapping[Choice, Sequence[Links]], gold: Sequence[GoldLinks], count: int) -> Choice:
    """The choice whose links of the first `count` lines have the lowest error rate; the first one of equals."""
    return min(found, key=lambda choice: quality(found[choice][:count], gold[:count]).aer)


def best_by_agreement(
    forward: Mapping[Choice, Sequence[Links]], reverse: Mapping[Choice, Sequence[Links]]
) -> tuple[Choice, Choice]:
    """The choices of two models, one for each direction, whose links agree most; the first ones of equals.

    No gold is needed: models that see the same text in opposite directions agree where they are right. (Chen et al.
    2020 choose the layer that way.) All links have the token of one and the same side first.
    """
    return max(
        ((one, other) for one in forward for other in reverse),
        key=lambda pair: agreement(forward[pair[0]], reverse[pair[1]]),
    )
