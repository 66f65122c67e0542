"""`sweep`: rule-built layouts over the ratio and the cut, trained beside the baseline, as PAR's figure 4 does."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from derive import Architecture, derive_architectures
from derive.strict_json import read_json, write_json
from nas.config.sections import Config
from nas.machine.stop import StopFlag
from nas.page.report import write_report
from nas.pictures.plots import draw_all
from nas.results.choice import loss_of, noise_of
from nas.stages.compare import write_comparison
from nas.stages.retrain_stage import retrain_stage
from nas.training.setup import open_setup
from supernet.errors import UserError


@dataclass(frozen=True)
class SweepPoint:
    """One rule-built layout: its cut, ratio and architecture."""

    cut: float
    ratio: float
    arch: Architecture


def sweep_run(folder: Path, config: Config, stop: StopFlag) -> dict[str, Any]:
    """Train the layouts of `sweep.cuts` x `sweep.ratios` and the baseline into `RUN/sweep/`; returns what `sweep.json`
    holds.

    The attention-like kinds are those that the run learned. The largest ratio whose mean loss lies within the
    baseline's noise band is written as `architectures/par-sweep.json`, with the sweep as its evidence.
    """
    setup = open_setup(config)
    points = sweep_points(folder, config)
    baseline = Architecture.preset(setup.task.baseline, points[0].arch.model, len(points[0].arch.layers))
    home = folder / "sweep"
    _check_same_settings(home, config)
    retrain_stage(config, [baseline, *(point.arch for point in points)], home, stop)
    seeds = list(range(config.run.seed, config.run.seed + config.retrain.seeds))
    names = [baseline.name, *(point.arch.name for point in points)]
    rows = write_comparison(setup, home, names, seeds)
    found = judge_sweep(points, rows, baseline.name)
    write_json(home / "sweep.json", found)
    if found["chosen"] is not None:
        point = next(point for point in points if point.arch.name == found["chosen"])
        sweep_architecture(point, found).save(folder / "architectures" / "par-sweep.json")
    return found


def _check_same_settings(home: Path, config: Config) -> None:
    """Trainings of another sweep are not taken for this one's: UserError names the keys that differ."""
    path = home / "settings.json"
    sections = {"sweep": dataclasses.asdict(config.sweep), "retrain": dataclasses.asdict(config.retrain)}
    settings = {f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()}
    if path.exists():
        before = read_json(path)
        changed = [
            key
            for key in settings
            if key != "sweep.ratios" and key != "sweep.cuts" and before.get(key) != settings[key]
        ]
        if changed:
            raise UserError(
                f"{home} holds a sweep with another {', '.join(changed)}; give that value again, or remove the folder"
            )
    write_json(path, settings)


def sweep_points(folder: Path, config: Config) -> list[SweepPoint]:
    """The layouts of every cut and ratio; layouts that come out equal are kept once, under the smaller ratio."""
    points: list[SweepPoint] = []
    for cut in config.sweep.cuts:
        for ratio in sorted(config.sweep.ratios):
            arch = derive_architectures(folder, cut=cut, ratio=ratio)["par-rule"]
            if all(arch.layers != point.arch.layers for point in points):
                points.append(
                    SweepPoint(cut, ratio, dataclasses.replace(arch, name=f"cut-{cut:.3g}-ratio-{ratio:.3g}"))
                )
    return points


def judge_sweep(points: list[SweepPoint], rows: list[dict[str, Any]], baseline: str) -> dict[str, Any]:
    """Means, the baseline's noise band, and the largest ratio within it.

    The band is the baseline's mean plus the noise of `compare.noise_of`; with one seed that leaves out training noise.
    """
    losses = {row["name"]: [loss_of(r) for r in rows if r["name"] == row["name"]] for row in rows}
    noise, seeds = noise_of(rows)
    limit = float(np.mean(losses[baseline])) + noise
    entries = []
    for point in points:
        values = losses[point.arch.name]
        cost = next(row["relative_flops"] for row in rows if row["name"] == point.arch.name)
        entries.append(
            {
                "name": point.arch.name,
                "cut": point.cut,
                "ratio": point.ratio,
                "pattern": point.arch.pattern,
                "relative_flops": cost,
                "held_out_loss": float(np.mean(values)),
                "spread": float(np.std(values, ddof=1)) if seeds > 1 else None,
                "within_band": bool(np.mean(values) <= limit),
            }
        )
    within = [entry for entry in entries if entry["within_band"]]
    best = max(within, key=lambda entry: (entry["ratio"], -entry["held_out_loss"]), default=None)
    return {
        "baseline": {
            "name": baseline,
            "held_out_loss": float(np.mean(losses[baseline])),
            "noise": noise,
            "limit": limit,
        },
        "seeds": seeds,
        "points": entries,
        "chosen": best["name"] if best else None,
        "largest_ratio": best["ratio"] if best else None,
    }


def sweep_architecture(point: SweepPoint, found: dict[str, Any]) -> Architecture:
    """The chosen layout with the sweep as the evidence of its ratio."""
    entry = next(entry for entry in found["points"] if entry["name"] == point.arch.name)
    base = found["baseline"]
    rule = {
        "rule": "sweep",
        "value": point.ratio,
        "interval": None,
        "supported": found["seeds"] > 1,
        "reason": f"The largest ratio whose mean loss {entry['held_out_loss']:.4f} stays below the baseline's "
        f"{base['held_out_loss']:.4f} plus its noise {base['noise']:.4f} ({found['seeds']} seeds each).",
        "points": found["points"],
    }
    evidence = {**point.arch.evidence, "rules": [rule, *point.arch.evidence.get("rules", [])]}
    return dataclasses.replace(point.arch, name="par-sweep", evidence=evidence)


def sweep_table(found: dict[str, Any]) -> str:
    """The sweep as text, one line a layout."""
    base = found["baseline"]
    lines = [f"{base['name']}: loss {base['held_out_loss']:.4f}, noise {base['noise']:.4f}, {found['seeds']} seeds"]
    for entry in found["points"]:
        spread = "-" if entry["spread"] is None else f"{entry['spread']:.4f}"
        mark = "within the band" if entry["within_band"] else ""
        lines.append(
            f"cut {entry['cut']:.3f}  ratio {entry['ratio']:5.2f}  cost {entry['relative_flops']:.2f}  "
            f"loss {entry['held_out_loss']:.4f}  spread {spread}  {entry['pattern']}  {mark}".rstrip()
        )
    largest = found["largest_ratio"]
    lines.append(
        f"largest ratio within the band: {largest:g}" if largest else "no ratio stays within the baseline's band"
    )
    return "\n".join(lines)


def print_sweep(folder: Path, config: Config, stop: StopFlag) -> None:
    """`sweep_run`, its table on standard output, and the run's pictures and page with the sweep in them."""
    print(sweep_table(sweep_run(folder, config, stop)))
    draw_all(folder)
    print(f"report: {write_report(folder)}")
