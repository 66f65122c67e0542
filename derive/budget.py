"""The likeliest layout under constraints, as an integer programme solved to proven optimality (HiGHS, by scipy).

One binary variable a layer and candidate, one candidate a layer; the summed log-probability is maximised. Layouts whose
log-probabilities are equal to about 1e-6 are ties: the cheaper one wins, then a fixed order, so results do not vary.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from derive.constraints import Constraint
from supernet.errors import RunFailed, UserError

FLOOR = 1e-12  # probability taken for zeros, so that their logarithm is finite
SCALE = 1e4  # of objective and costs, so that the solver's absolute tolerances are far below any real difference
CHEAPER, ORDER = 1e-7, 1e-8  # weights of the tie-breaks, in nats a layer
TIME_LIMIT = 120.0  # seconds, for one programme; real ones take well under one
GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Problem:
    """Probabilities [N, C], cost of each candidate [C] over the whole interleaved baseline's, budget (None: no
    bound)."""

    probabilities: np.ndarray
    costs: np.ndarray
    budget: float | None = None
    constraints: list[Constraint] = field(default_factory=list)

    @property
    def log_probabilities(self) -> np.ndarray:
        """[N, C], in nats, zeros at a floor."""
        return np.log(np.maximum(self.probabilities, FLOOR))

    def all_constraints(self) -> list[Constraint]:
        """The budget, where there is one, and the others."""
        return [*([] if self.budget is None else [self._bound(self.budget)]), *self.constraints]

    def without_budget(self) -> "Problem":
        """The same problem without bound on the cost."""
        return dataclasses.replace(self, budget=None)

    def solution(self, choice: Sequence[int]) -> "Solution":
        """The layout with its figures."""
        choice = [int(candidate) for candidate in choice]
        likelihood = float(self.log_probabilities[range(len(choice)), choice].sum())
        return Solution(choice, likelihood, float(self.costs[choice].sum()))

    def blockers(self, choice: Sequence[int]) -> list[str]:
        """For each layer the first constraint that its likeliest candidate would break there (`tie` where none is)."""
        names = []
        for layer, row in enumerate(self.probabilities):
            swapped = [*choice[:layer], int(row.argmax()), *choice[layer + 1 :]]
            names.append(next((c.name for c in self.all_constraints() if not c.holds(swapped)), "tie"))
        return names

    def _bound(self, budget: float) -> Constraint:
        layers = (True,) * len(self.probabilities)
        return Constraint(
            "budget",
            "derive.budget",
            f"the layers cost at most {budget:g} of the interleaved baseline",
            budget,
            self.costs,
            layers,
            high=budget,
        )


@dataclass(frozen=True)
class Solution:
    """A candidate's index a layer, the summed log-probability in nats, the cost as a fraction of the baseline."""

    choice: list[int]
    log_probability: float
    cost: float


def solve(problem: Problem) -> Solution:
    """The likeliest layout that keeps to the budget and all constraints.

    Raises UserError where there is none: it names the constraints in conflict and the nearest value that can be met.
    """
    choice = _optimum(problem, _gain(problem), problem.all_constraints())
    if choice is None:
        raise UserError(_conflict(problem))
    return problem.solution(choice)


def front(problem: Problem, points: int = 50) -> list[Solution]:
    """At most `points` layouts, none both cheaper and likelier than another, for budgets spread evenly over the
    range."""
    likeliest = solve(problem)
    cheapest = _optimum(problem, -problem.costs[None].repeat(len(problem.probabilities), axis=0), problem.constraints)
    least = problem.solution(cheapest).cost
    budgets = np.linspace(least, max(least, likeliest.cost), max(2, points))[:-1]
    found = [solve(dataclasses.replace(problem, budget=float(budget))) for budget in budgets]
    kept: list[Solution] = []
    for solution in sorted([*found, likeliest], key=lambda s: (s.cost, -s.log_probability)):
        if not kept or solution.log_probability > kept[-1].log_probability + 1e-9:
            kept.append(solution)
    return kept


def _gain(problem: Problem) -> np.ndarray:
    """What choosing a candidate in a layer is worth [N, C]: its log-probability, less the tie-breaks."""
    order = (np.arange(1, problem.probabilities.size + 1) * GOLDEN % 1).reshape(problem.probabilities.shape)
    return problem.log_probabilities - CHEAPER * problem.costs / max(problem.costs.max(), 1e-300) - ORDER * order


def _optimum(problem: Problem, gain: np.ndarray, constraints: list[Constraint]) -> list[int] | None:
    """The choice of largest summed gain [N, C], or None where the constraints leave none. Checked against them
    exactly."""
    tighter = {}
    for _ in range(8):
        choice = _programme(gain, constraints, tighter)
        broken = [] if choice is None else [c for c in constraints if not c.holds(choice)]
        if not broken:
            return choice
        for constraint in broken:  # the solver's tolerance let it slip through
            excess = constraint.measure(choice) - constraint.high
            tighter[constraint.name] = tighter.get(constraint.name, 0.0) + 2 * excess
    raise RunFailed(f"budget: the solver keeps breaking {broken[0].name!r}")


def _programme(gain: np.ndarray, constraints: list[Constraint], tighter: dict[str, float]) -> list[int] | None:
    from scipy import sparse
    from scipy.optimize import Bounds, LinearConstraint, milp

    layers, candidates = gain.shape
    one_each = sparse.csr_array(np.kron(np.eye(layers), np.ones((1, candidates))))
    rows = [LinearConstraint(one_each, 1, 1)]
    for constraint in constraints:
        matrix, low, high = constraint.rows()
        high -= tighter.get(constraint.name, 0.0)
        unit = 1.0 if constraint.run or (constraint.weights % 1 == 0).all() else SCALE
        unit = SCALE / max(float(constraint.weights.max()), 1e-300) if constraint.weights.max() > SCALE else unit
        if len(matrix):
            rows.append(LinearConstraint(sparse.csr_array(matrix * unit), low * unit, high * unit))
    found = milp(
        -gain.ravel() * SCALE,
        constraints=rows,
        integrality=np.ones(gain.size),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 0.0, "time_limit": TIME_LIMIT},
    )
    if found.status == 2:
        return None
    if found.status != 0:
        raise RunFailed(f"budget: the integer programme was not solved: {found.message}")
    return [int(layer.argmax()) for layer in found.x.reshape(layers, candidates)]


def _conflict(problem: Problem) -> str:
    """One line: a smallest set of constraints that no layout meets together, and how far the first would have to
    give."""
    kept = problem.all_constraints()
    for constraint in list(kept):
        fewer = [other for other in kept if other is not constraint]
        if _optimum(problem, _gain(problem), fewer) is None:
            kept = fewer
    first, others = kept[0], kept[1:]
    against = " together with " + ", ".join(f"{c.name!r} ({c.path})" for c in others) if others else ""
    what = f"{first.value}" if first.name == "budget" else f"{first.value} ({first.name!r})"
    return f"{first.path}: {what} cannot be met{against}; {_nearest(problem, first, others)}"


def _nearest(problem: Problem, constraint: Constraint, others: list[Constraint]) -> str:
    """The nearest value that all other constraints leave, or those in conflict with it where all leave none."""
    every = [other for other in problem.all_constraints() if other.path != constraint.path]
    if _optimum(problem, _gain(problem), every) is not None:
        others = every
    if constraint.run:
        return f"the smallest longest_run that can be met is {_smallest_run(problem, constraint, others)}"
    grid = np.asarray(constraint.layers, dtype=np.float64)[:, None] * constraint.weights
    least, most = (constraint.measure(_optimum(problem, sign * grid, others)) for sign in (-1.0, 1.0))
    if constraint.path == "derive.budget":
        return _smallest_fraction(least)
    if constraint.path.endswith("only_in"):
        return f"at least {least:g} of them must stand elsewhere"
    value = least if constraint.high is not None and least > constraint.high else most
    return f"the nearest value that can be met is {value:.10g}"


def _smallest_fraction(least: float) -> str:
    """The fraction in three digits, rounded up so that it can be met itself."""
    fraction = math.ceil(least * 1000 - 1e-7) / 1000
    if fraction < least - 1e-9 * least:
        fraction += 0.001
    beyond = ", more than the 1 that a budget may be" if fraction > 1 else ""
    return f"the smallest feasible fraction is {fraction:.3f}{beyond}"


def _smallest_run(problem: Problem, constraint: Constraint, others: list[Constraint]) -> int:
    layers = len(problem.probabilities)
    for count in range(int(constraint.high) + 1, layers):
        if _optimum(problem, _gain(problem), [dataclasses.replace(constraint, high=count), *others]) is not None:
            return count
    return layers
