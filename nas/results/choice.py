"""Which layout to take, and what a comparison says in words: from the rows of comparison.json alone."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from nas.tasks.task import Task
from supernet.errors import RunFailed

DERIVED = ("argmax", "par-rule", "budget")  # the names that derivation gives


def from_search(name: str) -> bool:
    """Whether a layout of the comparison comes from the learned probabilities: derived from them, or drawn."""
    return name in DERIVED or name.startswith("drawn-")


@dataclass(frozen=True)
class Choice:
    """The layout to take, and the noise within which its loss counts as the best."""

    name: str
    noise: float
    noise_source: str
    means: dict[str, float]
    seeds: int


def choose_best(rows: list[dict[str, Any]]) -> Choice:
    """The cheapest layout (FLOPs) whose mean loss lies within the noise of the lowest mean loss.

    The noise is that of `noise_of`; with one seed it leaves out training noise, and it is said so.
    """
    by_name: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_name.setdefault(row["name"], []).append(row)
    means = {name: float(np.mean([loss_of(row) for row in group])) for name, group in by_name.items()}
    if not any(map(math.isfinite, means.values())):
        raise RunFailed("no training ended with a finite loss; lower retrain.lr")
    noise, seeds = noise_of(rows)
    source = f"{seeds} seeds each" if seeds > 1 else "one seed: evaluation noise only, training noise unknown"
    lowest = min(means.values())
    within = [name for name in by_name if means[name] <= lowest + noise]
    best = min(within, key=lambda name: (by_name[name][0]["flops_per_token"], means[name], name))
    return Choice(best, noise, source, means, seeds)


def noise_of(rows: list[dict[str, Any]]) -> tuple[float, int]:
    """Twice the standard error of a difference of two layouts' mean losses, and the seeds it comes from.

    With several seeds from the variance over seeds, pooled over all layouts with finite losses. With one seed from the
    evaluation's standard error alone (infinite where the text was too short for one), which leaves out training noise.
    """
    losses: dict[str, list[float]] = {}
    for row in rows:
        losses.setdefault(row["name"], []).append(loss_of(row))
    seeds = min(map(len, losses.values()))
    if seeds > 1:
        finite = [values for values in losses.values() if all(map(math.isfinite, values))]
        return 2 * math.sqrt(2 * float(np.mean([np.var(values, ddof=1) for values in finite])) / seeds), seeds
    errors = [row["standard_error"] for row in rows if math.isfinite(loss_of(row))]
    return 2 * math.sqrt(2) * max(math.inf if error is None else error for error in errors), seeds


def loss_of(row: dict[str, Any]) -> float:
    """A row's loss; infinite where the training ended without a finite one."""
    return math.inf if row["held_out_loss"] is None else row["held_out_loss"]


def table(rows: list[dict[str, Any]], choice: Choice, task: Task) -> str:
    """The comparison as text for standard output, one line an architecture, losses as mean and spread over seeds."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_name.setdefault(row["name"], []).append(row)
    header = ("", "name", "pattern", "parameters", "cost", "ms", "loss", "spread", task.figures[0])
    lines = [header]
    for name, group in sorted(by_name.items(), key=lambda item: choice.means[item[0]]):
        losses = [loss_of(row) for row in group]
        spread = f"{np.std(losses, ddof=1):.4f}" if len(losses) > 1 and all(map(math.isfinite, losses)) else "-"
        first = group[0]
        lines.append(
            (
                "*" if name == choice.name else "",
                name,
                first["pattern"],
                f"{first['parameters']:,}",
                f"{first['relative_flops']:.2f}",
                f"{first['latency_ms']:.2f}",
                f"{choice.means[name]:.4f}",
                spread,
                task.shown(group) if math.isfinite(choice.means[name]) else "-",
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def sentence(rows: list[dict[str, Any]], choice: Choice, derived: list[str]) -> str:
    """Whether the search won, lost or tied against the layouts trained beside it; one seed is enough to lose, not to
    win."""
    cost = {row["name"]: row["relative_flops"] for row in rows}
    ours = {name: loss for name, loss in choice.means.items() if name in derived}
    others = {name: loss for name, loss in choice.means.items() if name not in derived}
    if not ours or not others:
        return f"Best: {choice.name} at {cost[choice.name]:.2f} of the interleaved cost."
    mine, theirs = min(ours, key=ours.get), min(others, key=others.get)
    difference = others[theirs] - ours[mine]
    if abs(difference) <= choice.noise:
        verb = "ties with"
    else:
        verb = "LOST to" if difference < 0 else "beats" if choice.seeds > 1 else "reads below"
    return (
        f"The search's {mine} ({cost[mine]:.2f} of the interleaved cost) {verb} {theirs} ({cost[theirs]:.2f}) by "
        f"{difference:+.4f} nats (noise {choice.noise:.4f}, {choice.noise_source}); to take: {choice.name}."
    )
