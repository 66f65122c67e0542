"""The search for a program against brute force over every program of small tables, and on the published layouts."""

import itertools
import math

import numpy as np
import pytest

from benchmarks.rules import LAYOUTS, ORDER, planted, read_back
from derive.clause_space import count_spans, every_spans
from derive.program_certainty import fits
from derive.program_search import SAMPLES, search
from derive.programs import NAT, Clause, Program


def all_clauses(layers: int, kinds: list[str]) -> list[Clause]:
    found = [Clause(c.form, kind, c.start, c.end, c.period) for c in every_spans(layers).clauses for kind in kinds]
    for c in count_spans(layers).clauses:
        counts = range(1, c.end - c.start)
        found += [Clause("count", kind, c.start, c.end, count=count) for kind in kinds for count in counts]
    return found


def best_by_force(logs: np.ndarray, kinds: list[str], default: str, clauses: int) -> float:
    """The largest score of all programs with up to that many clauses of disjoint layers, one by one."""
    layers = logs.shape[1]
    best = -math.inf
    every_one = all_clauses(layers, kinds)
    for rest in kinds:
        own = [clause for clause in every_one if clause.holds != rest]
        programs = [Program(layers, Clause("rest", rest))]
        for count in range(1, clauses + 1):
            for chosen in itertools.combinations(own, count):
                taken = [layer for clause in chosen for layer in clause.span()]
                if len(taken) == len(set(taken)):
                    programs.append(Program(layers, Clause("rest", rest), chosen))
        lengths = np.array([program.bits(kinds, default) for program in programs])
        best = max(best, float((SAMPLES * fits(programs, logs, kinds).sum(axis=1) - NAT * lengths).max()))
    return best


def random_logs(seeds: int, layers: int, kinds: int, sharpness: float, rng: np.random.Generator) -> np.ndarray:
    rows = np.exp(sharpness * rng.normal(size=(seeds, layers, kinds)))
    return np.log(0.9 * rows / rows.sum(axis=2, keepdims=True) + 0.1 / kinds)


@pytest.mark.parametrize(
    ("layers", "kinds", "clauses"), [(1, 3, 1), (2, 2, 2), (4, 2, 3), (5, 2, 3), (4, 3, 3), (6, 3, 2), (9, 2, 2)]
)
@pytest.mark.parametrize("sharpness", [0.3, 2.0, 6.0])
def test_no_program_is_better_than_the_one_found(layers: int, kinds: int, clauses: int, sharpness: float) -> None:
    rng = np.random.default_rng([layers, kinds, int(10 * sharpness)])
    names = ["feed_forward", "self_attention", "identity"][:kinds]
    for seeds in (1, 2):
        logs = random_logs(seeds, layers, kinds, sharpness, rng)
        found = search(logs, names, "feed_forward", np.ones((1, seeds)))[0]
        assert found.score >= best_by_force(logs, names, "feed_forward", clauses) - 1e-6
        # and its score is what the program is worth
        own = SAMPLES * fits([found.program], logs, names).sum() - NAT * found.program.bits(names, "feed_forward")
        assert found.score == pytest.approx(own)


def test_three_clauses_are_found_exactly_among_many() -> None:
    """Larger tables: no pair or triple of a thousand random programs is better."""
    rng = np.random.default_rng(1)
    names = [f"kind {k}" for k in range(5)]
    logs = random_logs(3, 24, 5, 4.0, rng)
    found = search(logs, names, names[0], np.ones((1, 3)))[0]
    clauses = all_clauses(24, names)
    programs = []
    while len(programs) < 2000:
        chosen = [clauses[at] for at in rng.integers(len(clauses), size=rng.integers(1, 4))]
        taken = [layer for clause in chosen for layer in clause.span()]
        rest = names[rng.integers(5)]
        if len(taken) == len(set(taken)) and rest not in {clause.holds for clause in chosen}:
            programs.append(Program(24, Clause("rest", rest), tuple(chosen)))
    lengths = NAT * np.array([program.bits(names, names[0]) for program in programs])
    assert found.score >= (SAMPLES * fits(programs, logs, names).sum(axis=1) - lengths).max()


def test_weights_count_seeds() -> None:
    rng = np.random.default_rng(2)
    names = ["feed_forward", "self_attention"]
    logs = random_logs(2, 8, 2, 3.0, rng)
    twice = search(logs, names, "feed_forward", np.array([[2.0, 0.0], [1.0, 1.0]]))
    copied = search(logs[[0, 0]], names, "feed_forward", np.ones((1, 2)))[0]
    assert (twice[0].program, twice[0].score) == (copied.program, pytest.approx(copied.score))
    assert twice[1].program == search(logs, names, "feed_forward", np.ones((1, 2)))[0].program


@pytest.mark.parametrize("candidates", [3, 5, 9])
@pytest.mark.parametrize("name", LAYOUTS)
def test_published_layouts_come_back_letter_by_letter(name: str, candidates: int) -> None:
    rng = np.random.default_rng(0)
    for seeds in (1, 3):
        given = planted(LAYOUTS[name], ORDER[:candidates], 0.97, seeds=seeds, concentration=math.inf, rng=rng)
        assert read_back(given) == LAYOUTS[name]


@pytest.mark.parametrize("name", LAYOUTS)
def test_published_layouts_come_back_from_noise(name: str) -> None:
    """At 0.6 with Dirichlet noise of concentration 20; benchmarks/rules.py has a hundred draws of each."""
    rng = np.random.default_rng(3)
    for candidates in (3, 5, 9):
        for _ in range(4):
            given = planted(LAYOUTS[name], ORDER[:candidates], 0.6, seeds=3, concentration=20, rng=rng)
            assert read_back(given) == LAYOUTS[name]


def test_deep_networks_are_searched_on_a_grid() -> None:
    rng = np.random.default_rng(4)
    layout = "sf" * 60 + "f" * 80
    assert read_back(planted(layout, "sfi", 0.97, seeds=1, concentration=math.inf, rng=rng)) == layout
