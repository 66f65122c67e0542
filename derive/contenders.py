"""Further layouts worth a short training beside the derived ones: drawn, rule-built and random ones, all within the
budget."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from derive.architecture import Architecture
from derive.budget import Problem
from derive.derivation import build_problem, build_record
from derive.evidence import RunEvidence, read_run
from derive.patterns import spread
from supernet.blocks import Candidate

TRIES = 2000  # draws for layouts that keep the budget and the rules, before those are given up
LEAST_SHARE = 0.85  # of the budget that a random layout uses: layouts of about equal cost


def derive_contenders(
    run_folder: str | Path,
    *,
    drawn: int,
    random: int,
    budget: float | None = None,
    rules: list[dict[str, Any]] | None = None,
    seed: int = 0,
    selection: str = "last",
) -> dict[str, Architecture]:
    """Different layouts that keep the run's budget and rules, a function of `seed` alone.

    `early-X1`, `early-X2`: one and two blocks of each attention-like candidate X spread over the first half,
    feed-forward as deep as the budget lets, then identity (the paper's finding, within a budget). `drawn-K`: each layer
    drawn from the learned probabilities of one seed, the layouts first that the search found best with inherited
    weights (`layouts.json`). `random-K`: each layer drawn uniformly, at about the budget's cost. Fewer where too few
    are found.
    """
    run = read_run(run_folder)
    probabilities = run.selected(selection)
    problem = build_problem(run, probabilities, budget, run.section("derive").get("rules") if rules is None else rules)
    generator = np.random.default_rng(seed)
    found: dict[str, list[int]] = {}
    for name, choice in [
        *_early(run, problem),
        *_drawn(run, problem, drawn, generator),
        *_random(problem, random, generator),
    ]:
        if choice not in found.values():
            found[name] = choice
    why = "contender"
    rule = {
        "rule": why,
        "value": None,
        "supported": True,
        "reason": "Not derived: a layout to hold the derived ones against.",
    }
    return {
        name: build_record(
            run, name, probabilities, selection, [run.candidates[c] for c in choice], [rule], [why] * len(choice)
        )
        for name, choice in found.items()
    }


def _early(run: RunEvidence, problem: Problem) -> Iterator[tuple[str, list[int]]]:
    if not {Candidate("feed_forward"), Candidate("identity")} <= set(run.candidates):
        return
    rest, nothing = (run.candidates.index(Candidate(block)) for block in ("feed_forward", "identity"))
    layers = len(problem.probabilities)
    for index, candidate in enumerate(run.candidates):
        for count in (1, 2):
            if not candidate.attention_like or layers < 2 * count:
                continue
            places = spread(0, layers // 2, count, stride=max(1, layers // (2 * count)))
            choice = [index if layer in places else rest for layer in range(layers)]
            for last in range(layers - 1, max(places), -1):
                if _keeps(problem, choice):
                    break
                choice[last] = nothing
            if _keeps(problem, choice):
                twins = [other for other in run.candidates[:index] if other.letter == candidate.letter]
                yield f"early-{candidate.letter}{count}" + (f"-{len(twins) + 1}" if twins else ""), choice


def _drawn(
    run: RunEvidence, problem: Problem, count: int, generator: np.random.Generator
) -> Iterator[tuple[str, list[int]]]:
    seen: list[list[int]] = []
    for choice in itertools.chain(_scored(run), _blindly(run, generator)):
        if len(seen) == count:
            return
        if choice not in seen and _keeps(problem, choice):
            seen.append(choice)
            yield f"drawn-{len(seen)}", choice


def _scored(run: RunEvidence) -> Iterator[list[int]]:
    """The best of each seed, then the second best of each, and so on."""
    for rank in itertools.zip_longest(*(seed.scored for seed in run.seeds)):
        yield from ([run.labels.index(label) for label in layout] for layout in rank if layout is not None)


def _blindly(run: RunEvidence, generator: np.random.Generator) -> Iterator[list[int]]:
    for _ in range(TRIES):
        rows = run.seeds[generator.integers(len(run.seeds))].tail[-1]
        yield [int(generator.choice(len(row), p=row / row.sum())) for row in rows]


def _random(problem: Problem, count: int, generator: np.random.Generator) -> Iterator[tuple[str, list[int]]]:
    layers, candidates = problem.probabilities.shape
    least = LEAST_SHARE * (1.0 if problem.budget is None else problem.budget)
    for number in range(1, count + 1):
        for _ in range(TRIES):
            choice = generator.integers(candidates, size=layers).tolist()
            if problem.costs[choice].sum() >= least and _keeps(problem, choice):
                yield f"random-{number}", choice
                break


def _keeps(problem: Problem, choice: list[int]) -> bool:
    return all(constraint.holds(choice) for constraint in problem.all_constraints())
