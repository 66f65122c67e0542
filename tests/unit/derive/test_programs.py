"""The language: what programs hold, say, cost, and become at another depth."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from derive.clause_space import count_spans, every_spans
from derive.programs import ATTENTION, Clause, Program, even, ordinal, place_bits, rest_bits

KINDS = ["self_attention", "feed_forward", "identity"]


def every(period: int, start: int, end: int, holds: str = "self_attention") -> Clause:
    return Clause("every", holds, start, end, period)


def program(layers: int, *clauses: Clause, rest: str = "feed_forward") -> Program:
    return Program(layers, Clause("rest", rest), clauses)


def letters(made: Program) -> str:
    return "".join({"self_attention": "s", "feed_forward": "f", "identity": "i"}[label] for label in made.labels())


PUBLISHED = {
    "par-base": (program(32, every(4, 0, 24)), "sfff" * 6 + "f" * 8),
    "par-large": (program(36, every(4, 0, 28)), "sfff" * 7 + "f" * 8),
    "par-24b": (program(24, every(3, 0, 15)), "sff" * 5 + "f" * 9),
    "bert": (program(24, every(2, 0, 24)), "sf" * 12),
    "sandwich": (program(32, every(1, 0, 6), every(2, 6, 26)), "s" * 6 + "sf" * 10 + "f" * 6),
    "prefix and tail": (program(8, every(1, 0, 2), every(1, 6, 8, "identity")), "ssffffii"),
    "all alike": (program(5, rest="identity"), "iiiii"),
    "count": (program(6, Clause("count", "self_attention", 1, 6, count=2, at=(1, 4))), "fsffsf"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_layouts_are_short_programs(name: str) -> None:
    made, flat = PUBLISHED[name]
    assert letters(made) == flat
    if len(flat) >= 24:
        assert made.bits(KINDS, "feed_forward") < 0.8 * len(flat) * np.log2(3)
    assert made.scaled(made.layers) == made


def test_the_later_clause_holds_a_layer_that_two_want() -> None:
    assert letters(program(6, every(1, 0, 6), every(2, 1, 6, "identity"))) == "sisisi"


def test_sentences() -> None:
    made = program(32, every(4, 0, 24), every(1, 30, 32, "identity"))
    assert made.sentence() == (
        "every 4th of layers 0 to 23, from 0 on, holds self_attention; layers 30 to 31 hold identity; "
        "feed_forward elsewhere"
    )
    assert program(6, Clause("count", ATTENTION, 0, 6, count=2)).sentence() == (
        "2 of all layers hold attention, in no order; feed_forward elsewhere"
    )
    assert program(9, rest="identity").sentence() == "all layers hold identity"
    assert program(9, every(1, 3, 4)).sentence() == "layer 3 holds self_attention; feed_forward elsewhere"
    assert [ordinal(number) for number in (1, 2, 3, 4, 11, 12, 13, 21, 22)] == (
        ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd"]
    )


@pytest.mark.parametrize("layers", [1, 2, 5, 12, 32])
@pytest.mark.parametrize("kinds", [2, 3, 10])
def test_lengths_are_those_of_a_prefix_code(layers: int, kinds: int) -> None:
    """Kraft's inequality, which the guarantee against noise rests on: half of the code for each clause more."""
    names = ["feed_forward", "self_attention", *(f"kind {k}" for k in range(kinds - 2))]
    alone = program(layers).bits(names, "feed_forward")
    total = 0.0
    for clause in [*every_spans(layers).clauses, *count_spans(layers).clauses]:
        own = replace(clause, holds="self_attention", count=1 if clause.form == "count" else 0)
        counts = clause.end - clause.start - 1 if clause.form == "count" else 1
        total += counts * (kinds - 1) * 2 ** -(program(layers, own).bits(names, "feed_forward") - alone)
    assert total <= 0.5 + 1e-9
    rests = 2 ** -rest_bits(True, kinds) + (kinds - 1) * 2 ** -rest_bits(False, kinds)
    assert rests <= 1 + 1e-9


def test_places_cost_the_logarithm_of_their_number() -> None:
    assert 2 ** place_bits(3, 7) == pytest.approx(len(list(itertools.combinations(range(7), 3))))
    assert place_bits(5, 5) == pytest.approx(0)


def test_even_spreads_over_the_whole_range() -> None:
    assert even(0, 12, 3) == (2, 6, 10)
    for size, count in itertools.product(range(1, 12), range(1, 12)):
        if count <= size:
            places = even(3, 3 + size, count)
            assert len(set(places)) == count and min(places) >= 3 and max(places) < 3 + size


def test_par_base_goes_to_other_depths_with_its_period() -> None:
    par = PUBLISHED["par-base"][0]
    assert letters(par.scaled(48)) == "sfff" * 9 + "f" * 12
    assert letters(par.scaled(24)) == "sfff" * 5 + "f" * 4
    assert letters(par.scaled(16)) == "sfff" * 3 + "f" * 4


def test_borders_and_counts_scale_and_offsets_stay() -> None:
    assert letters(PUBLISHED["sandwich"][0].scaled(16)) == "s" * 3 + "sf" * 5 + "f" * 3
    assert letters(program(8, every(2, 1, 8)).scaled(12)) == "fsfsfsfsfsfs"
    assert letters(program(8, every(1, 6, 8, "identity")).scaled(12)) == "fffffffffiii"
    counted = program(8, Clause("count", "self_attention", 0, 4, count=2, at=(0, 1)))
    assert letters(counted) == "ssffffff"
    assert letters(counted.scaled(16)) == "fsfsfsfsffffffff"
    blocks = program(4, Clause("every", ATTENTION, 0, 4, 2, blocks=("identity", "self_attention")))
    assert letters(blocks) == "ifsf" and letters(blocks.scaled(8)) == "ififsfsf"


@pytest.mark.parametrize("layers", [1, 2, 3, 7, 100, 4096])
def test_any_program_makes_a_layout_at_any_depth(layers: int) -> None:
    for made, _ in PUBLISHED.values():
        assert len(made.scaled(layers).labels()) == layers
