"""The comparison: what each retrained architecture reached, at what cost, and which one to take."""

import csv
import dataclasses
import io
import math
from pathlib import Path
from typing import Any

from derive import Architecture
from derive.strict_json import read_json, write_atomic, write_json
from nas.costs.latency import LayerTimes, measure_network, shape_of
from nas.machine.device import compile_each
from nas.results.choice import choose_best
from nas.stages.retrain_stage import retrain_seeds
from nas.tasks.task import Task
from nas.training.evaluation import evaluate
from nas.training.setup import Setup
from nas.training.weights import load_trained
from supernet.inference import for_inference

# before and after the figures of the task
COLUMNS = (
    ("name", "seed", "pattern", "parameters", "flops_per_token", "latency_ms", "steps", "held_out_loss"),
    ("relative_flops", "standard_error", "predicted_latency_ms"),
)


def compare_stage(setup: Setup, folder: Path, derived: list[str]) -> None:
    """Write the comparison and, for the layout to take, `architectures/best.json`."""
    seeds = list(retrain_seeds(setup.config))
    homes = [home for home in sorted((folder / "retrain").iterdir()) if home.is_dir()]
    names = [home.name for home in homes if all((home / f"seed-{seed}" / "result.json").exists() for seed in seeds)]
    order = {name: position for position, name in enumerate(derived)}
    names.sort(key=lambda name: (order.get(name, len(order)), name))
    rows = write_comparison(setup, folder, names, seeds)
    choice = choose_best(rows)
    arch = Architecture.load(folder / "retrain" / choice.name / f"seed-{seeds[0]}" / "architecture.json")
    latency = next(row["latency_ms"] for row in rows if row["name"] == choice.name)
    arch = arch if arch.cost else arch.with_cost(setup.config.data.seq_len)
    dataclasses.replace(arch, cost={**arch.cost, "latency_ms": latency}).save(folder / "architectures" / "best.json")
    rival = min((name for name in names if name not in (*derived, choice.name)), key=choice.means.get, default=None)
    tested = [name for name in (choice.name, rival) if name is not None]
    write_json(folder / "test.json", test_losses(setup, folder, tested, seeds))


def test_losses(setup: Setup, folder: Path, names: list[str], seeds: list[int]) -> dict[str, float]:
    """Mean loss over the seeds on the `test` part, which nothing before has read: of the layout to take and its rival.

    The comparison's lowest loss is lowest partly by luck, since the choice was made on it; this one is not.
    """
    limit, losses = setup.config.retrain.final_tokens, {}
    for name in names:
        networks = (load_trained(folder / "retrain" / name / f"seed-{seed}") for seed in seeds)
        found = [evaluate(model.to(setup.machine.device), setup, "test", limit=limit).loss for model in networks]
        losses[name] = sum(found) / len(found)
    return losses


def write_comparison(setup: Setup, folder: Path, names: list[str], seeds: list[int]) -> list[dict[str, Any]]:
    """Collect `retrain/NAME/seed-K/`, measure each network's latency, write `comparison.json` and `.csv`; returns the
    rows.

    Beside the measured time stands the one that the times of its layers promise.
    """
    rows, layers = [], LayerTimes(setup.config, setup.machine)
    for name in names:
        homes = {seed: folder / "retrain" / name / f"seed-{seed}" for seed in seeds}
        first = homes[seeds[0]]
        times = {
            "latency_ms": _latency(first, setup),
            "predicted_latency_ms": layers.predict(Architecture.load(first / "architecture.json")),
        }
        rows += [_row(home, seed, times, setup) for seed, home in homes.items()]
    write_json(folder / "comparison.json", rows)
    write_atomic(folder / "comparison.csv", _csv(rows, setup.task).encode("utf-8"))
    return rows


def _latency(home: Path, setup: Setup) -> float:
    model = for_inference(load_trained(home)).to(setup.machine.device)
    if setup.config.run.compile:
        compile_each(model.layers)
    return measure_network(model, shape_of(setup.config), setup.machine)["median_ms"]


def _row(home: Path, seed: int, times: dict[str, float], setup: Setup) -> dict[str, Any]:
    arch, result = Architecture.load(home / "architecture.json"), read_json(home / "result.json")
    loss, seq_len = result["held_out_loss"], setup.config.data.seq_len
    found = setup.task.measures(setup.corpus, math.nan if loss is None else loss, "held_out")
    measured = {name: None if loss is None else value for name, value in found.items()}
    row = {
        "name": arch.name,
        "seed": seed,
        "pattern": arch.pattern,
        "parameters": arch.parameters(),
        "flops_per_token": arch.flops_per_token(seq_len),
        "latency_ms": times["latency_ms"],
        "steps": result["steps"],
        "held_out_loss": loss,
        **{name: measured[name] for name in setup.task.figures},
        "relative_flops": round(arch.relative_flops(seq_len), 6),
        "standard_error": result["standard_error"],
        "predicted_latency_ms": round(times["predicted_latency_ms"], 6),
    }
    return {**row, **{name: value for name, value in measured.items() if name not in row}}


def _csv(rows: list[dict[str, Any]], task: Task) -> str:
    text = io.StringIO()
    columns = list(rows[0]) if rows else [*COLUMNS[0], *task.figures, *COLUMNS[1]]
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
