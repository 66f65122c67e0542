"""The comparison: what each retrained architecture reached, at what cost, and which one to take."""

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from derive import Architecture, build
from derive.strict_json import read_json, write_atomic, write_json
from nas.config import Config
from nas.data import WORDED, Corpus
from nas.latency import LayerTimes, measure_network, shape_of
from nas.machine import Machine, compile_each
from nas.train import load_weights
from supernet.errors import RunFailed
from supernet.inference import for_inference

COLUMNS = (
    "name",
    "seed",
    "pattern",
    "parameters",
    "flops_per_token",
    "latency_ms",
    "steps",
    "held_out_loss",
    "perplexity",
    "bits_per_character",
    "relative_flops",
    "standard_error",
    "predicted_latency_ms",
)


def write_comparison(
    folder: Path, names: list[str], seeds: list[int], config: Config, corpus: Corpus, machine: Machine
) -> list[dict]:
    """Collect `retrain/NAME/seed-K/`, measure each network's latency, write `comparison.json` and `.csv`; returns the
    rows.

    Beside the measured time stands the one that the times of its layers promise.
    """
    rows, layers = [], LayerTimes(config, machine)
    for name in names:
        homes = {seed: folder / "retrain" / name / f"seed-{seed}" for seed in seeds}
        first = homes[seeds[0]]
        times = {
            "latency_ms": _latency(first, config, machine),
            "predicted_latency_ms": layers.predict(Architecture.load(first / "architecture.json")),
        }
        rows += [_row(home, seed, times, config, corpus) for seed, home in homes.items()]
    write_json(folder / "comparison.json", rows)
    write_atomic(folder / "comparison.csv", _csv(rows).encode("utf-8"))
    return rows


def _latency(home: Path, config: Config, machine: Machine) -> float:
    arch = Architecture.load(home / "architecture.json")
    model = build(arch)
    load_weights(model, home / "model.safetensors")
    model = for_inference(model).to(machine.device)
    if config.run.compile:
        compile_each(model.layers)
    return measure_network(model, shape_of(config), machine)["median_ms"]


def _row(home: Path, seed: int, times: dict[str, float], config: Config, corpus: Corpus) -> dict[str, Any]:
    arch, result = Architecture.load(home / "architecture.json"), read_json(home / "result.json")
    loss = result["held_out_loss"]
    row = {
        "name": arch.name,
        "seed": seed,
        "pattern": arch.pattern,
        "parameters": arch.parameters(),
        "flops_per_token": arch.flops_per_token(config.data.seq_len),
        "latency_ms": times["latency_ms"],
        "steps": result["steps"],
        "held_out_loss": loss,
        "perplexity": None if loss is None else math.exp(min(loss, 700.0)),
        "bits_per_character": None if loss is None else corpus.bits_per_character(loss, "held_out"),
        "relative_flops": round(arch.relative_flops(config.data.seq_len), 6),
        "standard_error": result["standard_error"],
        "predicted_latency_ms": round(times["predicted_latency_ms"], 6),
    }
    if (
        corpus.kind in WORDED
    ):  # one figure for every way of cutting words into tokens; a byte's or character's would be none
        row["word_perplexity"] = None if loss is None else corpus.word_perplexity(loss, "held_out")
    return row


def _csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


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


def table(rows: list[dict[str, Any]], choice: Choice) -> str:
    """The comparison as text for standard output, one line an architecture, losses as mean and spread over seeds."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_name.setdefault(row["name"], []).append(row)
    header = ("", "name", "pattern", "parameters", "cost", "ms", "loss", "spread", "perplexity")
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
                f"{math.exp(min(choice.means[name], 700.0)):.3f}" if math.isfinite(choice.means[name]) else "-",
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
