"""Pictures of cost: the expected cost against its target, and loss against cost with the Pareto front."""

import math
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from nas.plots_base import (
    GREY, INK, NothingToDraw, Target, need_searches, panels, runs_of, shade_warm_up, side_legend, warm_up_end,
)  # fmt: skip
from nas.plots_losses import looks
from nas.run_files import Run

UNITS = {"flops_per_token": "FLOPs a token", "parameters": "parameters", "ms": "ms"}


@dataclass(frozen=True)
class Result:
    """One architecture over its seeds: mean held-out loss (nats), half of its 95 % interval (NaN for one seed), cost."""

    name: str
    pattern: str
    seeds: int
    loss: float
    half_width: float
    cost: float
    parameters: float


def results(run: Run) -> tuple[list[Result], str]:
    """The comparison over seeds, best first, and the unit of `cost`: measured ms where every row has it, else FLOPs."""
    rows = [row for row in run.comparison if row.get("held_out_loss") is not None]
    key = "latency_ms" if rows and all(row.get("latency_ms") is not None for row in rows) else "flops_per_token"
    found = []
    for name in dict.fromkeys(row["name"] for row in rows):
        own = [row for row in rows if row["name"] == name]
        losses = np.array([row["held_out_loss"] for row in own], float)
        cost = [math.nan if row.get(key) is None else float(row[key]) for row in own]
        found.append(Result(name, str(own[0].get("pattern", "")), len(own), float(losses.mean()), interval(losses),
                            float(np.mean(cost)), float(own[0].get("parameters") or math.nan)))  # fmt: skip
    return sorted(found, key=lambda one: one.loss), "ms" if key == "latency_ms" else "flops_per_token"


def interval(values: np.ndarray) -> float:
    """Half the width of Student's 95 % interval of the mean; NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan
    from scipy.special import stdtrit  # the t quantile; scipy.stats would take a second to load

    return float(stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / math.sqrt(len(values)))


def pareto(found: list[Result]) -> list[Result]:
    """Those that no other one beats in cost without losing in loss, by rising cost."""
    front: list[Result] = []
    for one in sorted((one for one in found if math.isfinite(one.cost)), key=lambda one: (one.cost, one.loss)):
        if not front or one.loss < front[-1].loss:
            front.append(one)
    return front


def cost_against_loss_size(run: Run) -> tuple[float, float]:
    """Width and height in inches."""
    return 11.0, max(4.4, 1.2 + 0.3 * len({row["name"] for row in run.comparison}))


def draw_cost_against_loss(run: Run, target: Target) -> None:
    """Held-out loss against cost for each architecture, with 95 % intervals over seeds and the Pareto front."""
    found, unit = results(run)
    if not found:
        raise NothingToDraw("No architecture has been retrained and compared in this run, so loss and cost cannot be set side by side.")
    axes = panels(target, [1])[0][0]
    scale, name = _scale([one.cost for one in found], unit)
    front = pareto(found)
    axes.step([one.cost / scale for one in front], [one.loss for one in front], where="post", color=GREY, linewidth=1, zorder=1)
    for one, (color, _, marker) in zip(found, looks([one.name for one in found])):
        bars = None if math.isnan(one.half_width) else one.half_width
        text = f"{one.name}  {one.loss:.3f}" + (f" ± {bars:.3f}" if bars is not None else "")
        axes.errorbar(one.cost / scale, one.loss, yerr=bars, fmt=marker, color=color, capsize=4, markersize=9, elinewidth=1.2,
                      markerfacecolor=color if one in front else "white", markeredgewidth=1.6, label=text)  # fmt: skip
    axes.set_xlabel(f"cost ({name})")
    axes.set_ylabel("held-out cross-entropy (nats a token)")
    seeds = max(one.seeds for one in found)
    bars_text = f"bars: 95 % interval over {seeds} seeds; " if seeds > 1 else "one seed, so no error bars; "
    axes.set_title(f"Loss against cost ({bars_text}filled: on the Pareto front)")
    axes.margins(0.12)
    side_legend(target, axes, labelspacing=0.6)


def expected_cost_size(run: Run) -> tuple[float, float]:
    """Width and height in inches."""
    return 9.0, 3.8


def draw_expected_cost(run: Run, target: Target) -> None:
    """The expected cost of the layers over the search's steps, relative to interleaved, and the target."""
    searches = need_searches(run)
    if np.isnan(searches[0].costs).any():
        raise NothingToDraw("probabilities.json gives no cost for some candidates, so an expected cost cannot be told.")
    axes = panels(target, [1])[0][0]
    first = runs_of(run)[0][1]
    baseline = searches[0].interleaved_cost()
    scale, unit = (baseline, "") if math.isfinite(baseline) and baseline > 0 else _scale(list(searches[0].expected_cost()),
                                                                                         searches[0].cost_unit)  # fmt: skip
    for place, search in enumerate(searches):
        axes.plot(search.steps, search.expected_cost() / scale, color=INK, linestyle=("-", "--", ":", "-.")[place % 4],
                  label=f"expected, seed {search.seed}" if len(searches) > 1 else "expected, from the probabilities")  # fmt: skip
    _reference_lines(axes, relative=not unit, budget=searches[0].budget)
    shade_warm_up(axes, warm_up_end(first, first.metrics), label=True)
    axes.set_ylim(bottom=0)
    axes.set_ylim(top=axes.get_ylim()[1] * 1.12)
    axes.margins(x=0.01)
    axes.set_xlabel("search step")
    axes.set_ylabel(f"cost ({unit})" if unit else "cost, interleaved = 1")
    kind = UNITS.get(searches[0].cost_unit, searches[0].cost_unit)
    budget = "" if searches[0].budget is not None else "; no budget was set"
    axes.set_title(f"Expected cost of the layers ({kind}{budget})")
    side_legend(target, axes)


def _reference_lines(axes: Axes, *, relative: bool, budget: float | None) -> None:
    if not relative:
        return
    axes.axhline(1, color=GREY, linestyle=":", linewidth=1.2, label="interleaved baseline")
    if budget is not None:
        axes.axhline(budget, color="#B03009", linewidth=1.4, linestyle=(0, (6, 2)), label=f"target {budget:g}")


def _scale(values: list[float], unit: str) -> tuple[float, str]:
    """A power of 1000 that keeps the numbers short, and the unit's words with its prefix."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=1.0)
    for size, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if unit != "ms" and largest >= size:
            return size, {"flops_per_token": f"{prefix}FLOPs a token"}.get(unit, f"{prefix} {UNITS.get(unit, unit)}")
    return 1.0, UNITS.get(unit, unit)
