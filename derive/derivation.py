"""From a run folder to architectures: the argmax, the PAR rule's layout, and the best under a budget. Writes
nothing."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from derive.architecture import Architecture
from derive.budget import Problem, Solution, front, solve
from derive.constraints import check_budget, parse_rules
from derive.evidence import RunEvidence, number, read_run
from derive.kind_table import Table
from derive.layout import Layout, overruled, par_rule_layout, rule_names
from derive.rule_file import RuleFile
from derive.rules import find_rules
from supernet.blocks import Candidate, candidate_cost
from supernet.errors import SettingError, UserError


def derive_architectures(
    run_folder: str | Path,
    cut: float | None = None,
    ratio: float | None = None,
    budget: float | None = None,
    rules: Sequence[dict[str, Any]] | None = None,
    selection: str = "last",
) -> dict[str, Architecture]:
    """The architectures `argmax`, `par-rule` and `budget` of a run folder, or of the parent of several seeds' folders.

    What is None is taken from the run's `derive` section; a cut or ratio that is null there too is read from the
    evidence, a budget from `search.budget`. `selection`: "last", or "average" over the last quarter of the recorded
    probabilities. Raises UserError for files that are wrong and constraints that cannot be met.
    """
    run = read_run(run_folder)
    section = run.section("derive")
    probabilities = run.selected(selection)
    problem = build_problem(run, probabilities, budget, section.get("rules") if rules is None else rules)
    layout = _rule_layout(run, selection, cut, ratio)
    best = solve(problem)
    argmax = [run.candidates[int(row.argmax())] for row in probabilities]
    cheapest = [run.candidates[choice] for choice in best.choice]
    found = {
        "argmax": (argmax, [], [""] * len(argmax)),
        "par-rule": (layout.layers, layout.rules, rule_names(layout, probabilities, run.candidates)),
        "budget": (cheapest, _budget_rules(problem, best), problem.blockers(best.choice)),
    }
    return {name: build_record(run, name, probabilities, selection, *parts) for name, parts in found.items()}


def derive_rule(
    run_folder: str | Path, cut: float | None = None, ratio: float | None = None, selection: str = "last"
) -> RuleFile:
    """The rule of a run folder as its file: the program that `par-rule` is the layout of, its evidence and provenance.

    Arguments as of `derive_architectures`. Writes nothing. Raises UserError for files that are wrong.
    """
    run = read_run(run_folder)
    layout = _rule_layout(run, selection, cut, ratio)
    evidence = {
        "candidates": run.labels,
        "probabilities": run.selected(selection).round(6).tolist(),
        "rules": layout.rules,
        "verdict": run.verdict(),
    }
    model = {**run.settings.to_mapping()}
    return RuleFile(
        layout.program, evidence, {**_provenance(run, selection), "task": run.settings.task, "model": model}
    )


def _rule_layout(run: RunEvidence, selection: str, cut: float | None, ratio: float | None) -> Layout:
    """The layout of the rule; a cut and ratio that are None are the run's own."""
    section = run.section("derive")
    cut, ratio = (
        number(section.get(key)) if value is None else value for key, value in (("cut", cut), ("ratio", ratio))
    )
    table = Table(
        [seed.tail for seed in run.seeds],
        run.labels,
        np.array([c.attention_like for c in run.candidates]),
        np.array([c.block == "identity" for c in run.candidates]),
        selection,
    )
    return par_rule_layout(table, run.candidates, find_rules(table), cut=cut, ratio=ratio)


def pareto_front(
    run_folder: str | Path, points: int = 50, rules: Sequence[dict[str, Any]] | None = None, selection: str = "last"
) -> list[dict[str, Any]]:
    """Layouts of which none is both cheaper and likelier than another, from the cheapest to the likeliest.

    Each has `cost` (fraction of the interleaved baseline), `log_probability` (nats), `pattern` and `layers` (labels).
    """
    run = read_run(run_folder)
    problem = build_problem(
        run, run.selected(selection), None, run.section("derive").get("rules") if rules is None else rules
    )
    return [
        {
            "cost": solution.cost,
            "log_probability": solution.log_probability,
            "pattern": "".join(run.candidates[choice].letter for choice in solution.choice),
            "layers": [run.labels[choice] for choice in solution.choice],
        }
        for solution in front(problem.without_budget(), points)
    ]


def build_problem(
    run: RunEvidence, probabilities: np.ndarray, budget: float | None, rules: Sequence[dict[str, Any]] | None
) -> Problem:
    first, section = run.seeds[0], run.section("derive")
    for value in (budget, number(section.get("budget")), number(run.section("search").get("budget", first.budget))):
        if value is not None:
            budget = check_budget(value)
            break
    costs = np.array([first.costs[label] for label in run.labels], dtype=np.float64)
    weighed = isinstance(rules, Sequence) and any(isinstance(rule, Mapping) and "cost" in rule for rule in rules)
    units = {**(_closed_form(run) if weighed else {}), first.unit: costs}
    constraints = parse_rules(rules, run.candidates, run.labels, len(probabilities), units)
    baseline = len(probabilities) / 2 * sum(_price(run, block) for block in ("self_attention", "feed_forward"))
    if baseline <= 0:
        raise UserError(
            f"{run.name}: probabilities.json: cost.candidates: self_attention and feed_forward together cost nothing"
        )
    return Problem(probabilities, costs / baseline, budget, constraints)


def _price(run: RunEvidence, block: str) -> float:
    """Cost of a block at its default options in the file's unit, in closed form where the file does not have it."""
    first = run.seeds[0]
    if block in first.costs:
        return first.costs[block]
    if first.unit == "ms":
        raise UserError(
            f"{run.name}: probabilities.json: cost.candidates: has no {block!r}, which the baseline is made of"
        )
    parameters, flops = candidate_cost(Candidate(block), run.settings, _seq_len(run))
    return float(parameters if first.unit == "parameters" else flops)


def _closed_form(run: RunEvidence) -> dict[str, np.ndarray]:
    """Costs [C] in the units that need no measuring; only where a rule weighs them, as users' blocks are built for
    it."""
    costs = np.array([candidate_cost(c, run.settings, _seq_len(run)) for c in run.candidates], dtype=np.float64)
    return {unit: costs[:, at] for at, unit in enumerate(("parameters", "flops_per_token"))}


def _seq_len(run: RunEvidence) -> int:
    seq_len = run.section("data").get("seq_len", run.settings.max_len)
    if isinstance(seq_len, bool) or not isinstance(seq_len, int) or not 1 <= seq_len <= run.settings.max_len:
        raise SettingError(
            "data.seq_len", f"expected an integer from 1 to max_len {run.settings.max_len}, got {seq_len!r}"
        )
    return seq_len


def _budget_rules(problem: Problem, best: Solution) -> list[dict[str, Any]]:
    """The budget and each constraint as rules of the file, with what the layout makes of them."""
    if problem.budget is None:
        reason = "No budget was given, by derive.budget or search.budget, so the cost is not bounded."
    else:
        reason = f"The layers cost {best.cost:.4f} of the interleaved baseline, at most {problem.budget:g} are allowed."
    rules = [
        {"rule": "budget", "value": problem.budget, "used": round(best.cost, 6), "supported": True, "reason": reason}
    ]
    for constraint in problem.constraints:
        used = constraint.measure(best.choice)
        rules.append(
            {
                "rule": constraint.name,
                "value": constraint.value,
                "used": used,
                "supported": True,
                "reason": f"Given in {constraint.path}: {constraint.sentence}.",
            }
        )
    return rules


def build_record(
    run: RunEvidence,
    name: str,
    probabilities: np.ndarray,
    selection: str,
    layers: list[Candidate],
    rules: list[dict[str, Any]],
    why: list[str],
) -> Architecture:
    evidence = {
        "candidates": run.labels,
        "probabilities": probabilities.round(6),
        "rules": rules,
        "verdict": run.verdict(),
        "overruled": overruled(probabilities, run.candidates, run.labels, layers, why),
    }
    made = Architecture(
        name, run.settings.task, run.settings, tuple(layers), evidence, {}, _recipe(run), _provenance(run, selection)
    )
    return made.with_cost(_seq_len(run), relative_latency=_relative_latency(run, layers))


def _relative_latency(run: RunEvidence, layers: list[Candidate]) -> float | None:
    """The layers' measured time over the interleaved baseline's, where the run measured all of them."""
    first = run.seeds[0]
    if first.unit != "ms" or not all(layer in run.candidates for layer in layers):
        return None
    total = sum(first.costs[run.labels[run.candidates.index(layer)]] for layer in layers)
    return round(total / (len(layers) / 2 * (_price(run, "self_attention") + _price(run, "feed_forward"))), 6)


def _recipe(run: RunEvidence) -> dict[str, Any]:
    """How to retrain, as far as the run's configuration says."""
    data, retrain = run.section("data"), run.section("retrain")
    recipe = {
        "steps": retrain.get("steps"),
        "lr": number(retrain.get("lr")),
        "batch_size": data.get("batch_size"),
        "seq_len": data.get("seq_len"),
    }
    return {key: value for key, value in recipe.items() if value is not None}


def _provenance(run: RunEvidence, selection: str) -> dict[str, Any]:
    first = run.seeds[0]
    provenance = {
        "run": run.name,
        "seed": first.seed,
        "step": first.step,
        "selection": selection,
        "data": {key: run.data[key] for key in ("name", "sha256")},
        "versions": first.versions,
    }
    return provenance if len(run.seeds) == 1 else {**provenance, "seeds": [seed.seed for seed in run.seeds]}
