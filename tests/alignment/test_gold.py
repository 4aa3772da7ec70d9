"""Pharaoh links, alignment error rate, and the choice of a layer and head."""

import pytest

from nmt.alignment.choose import best_by_agreement, best_by_gold
from nmt.alignment.gold import (
    GoldLinks,
    agreement,
    check_inside,
    parse_gold,
    quality,
    read_links,
    to_pharaoh,
)
from nmt.alignment.links import Links
from nmt.errors import DataError


def links(text: str) -> Links:
    return parse_gold(text).possible


def test_pharaoh() -> None:
    assert parse_gold(" 0-1 2p3  10-11 0p1 ") == GoldLinks(
        frozenset({(0, 1), (10, 11)}), frozenset({(0, 1), (2, 3), (10, 11)})
    )
    assert parse_gold("") == parse_gold("\r") == GoldLinks(frozenset(), frozenset())
    assert to_pharaoh([(10, 0), (3, 2), (1, 2)]) == "10-0 1-2 3-2" and to_pharaoh([]) == ""
    assert links(to_pharaoh(links("3-1 4-0"))) == links("3-1 4-0")


@pytest.mark.parametrize("word", ["1:2", "1-", "-1-2", "1-2-3", "a-b", "1 - 2", "١-٢", "1-2,", "9999999999-1", "1P2"])
def test_what_is_no_link_is_named(word: str) -> None:
    with pytest.raises(DataError, match=r"gold\.talp, line 2: .* is no link; links are i-j"):
        read_links(["0-0", f"0-1 {word}"], "gold.talp")


def test_a_long_word_is_cut_in_the_message() -> None:
    with pytest.raises(DataError) as caught:
        read_links(["\x1b" * 1000], "g")
    assert len(str(caught.value)) < 400 and "\x1b" not in str(caught.value)


def test_links_outside_of_the_texts() -> None:
    gold = read_links(["0-0", "1p2"], "gold")
    check_inside(gold, ["a", "a b"], ["a", "a b\u00a0c"], "gold")
    with pytest.raises(DataError, match=r"gold, line 2: there is a link 1-2, .* 3 source and 2 target.*swapped"):
        check_inside(gold, ["a", "a b c"], ["a", "a b"], "gold")


def test_error_rate_by_hand() -> None:
    """Och and Ney's: 2 sure of 3, 3 possible of 4 found: 1 - (2 + 3) / (4 + 3)."""
    gold = [parse_gold("0-0 1-1 2p1"), parse_gold("0-0")]
    found = [links("0-0 2-1 1-2"), links("0-0")]
    result = quality(found, gold)
    assert (result.links, result.sure, result.possible, result.right_sure, result.right_possible) == (4, 3, 4, 2, 3)
    assert result.precision == 3 / 4 and result.recall == 2 / 3
    assert result.aer == pytest.approx(1 - 5 / 7)
    assert quality([gold[0].sure, gold[1].sure], gold).aer == 0
    assert quality([gold[0].possible, gold[1].possible], gold).aer == 0  # possible ones cost nothing
    assert quality([links("5-5"), links("")], gold).aer == 1
    nothing = quality([links(""), links("")], gold)
    assert (nothing.precision, nothing.recall, nothing.aer) == (1, 0, 1)
    assert quality([links("")], [parse_gold("")]).aer == 0


def test_without_possible_links_it_is_one_minus_f() -> None:
    result = quality([links("0-0 1-1 2-2 3-3")], [parse_gold("0-0 1-1 2-3")])
    f_measure = 2 * result.precision * result.recall / (result.precision + result.recall)
    assert result.aer == pytest.approx(1 - f_measure)


def test_choice_by_gold_looks_at_the_first_lines_alone() -> None:
    gold = [parse_gold("0-0"), parse_gold("1-1")]
    found = {"good": [links("0-0"), links("")], "bad": [links("0-1"), links("1-1")]}
    assert best_by_gold(found, gold, 1) == "good"
    assert best_by_gold({"bad": found["bad"], "same": found["bad"]}, gold, 2) == "bad"  # the first one of equals


def test_choice_by_agreement() -> None:
    right, wrong = [links("0-0 1-1")], [links("0-1 1-0")]
    assert best_by_agreement({"a": wrong, "b": right}, {"c": [links("5-5")], "d": right}) == ("b", "d")
    assert agreement(right, right) == 1 and agreement(right, wrong) == 0 and agreement([], []) == 0
    assert agreement([links("0-0 1-1")], [links("0-0")]) == pytest.approx(2 * 1 * 0.5 / 1.5)  # of P and R
