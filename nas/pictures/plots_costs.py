"""Pictures of cost: the expected cost against its target, loss against cost with the Pareto front, latency."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from nas.pictures.palette import INK, shorten
from nas.pictures.plots_base import (
    GREY,
    NothingToDraw,
    Target,
    legend_name,
    need_searches,
    palette_of,
    panels,
    runs_of,
    shade_warm_up,
    side_legend,
    warm_up_end,
    wrap,
)
from nas.pictures.plots_losses import looks
from nas.results.run_files import Run

UNITS = {"flops_per_token": "FLOPs a token", "parameters": "parameters", "ms": "ms"}


@dataclass(frozen=True)
class Result:
    """One architecture over its seeds: mean held-out loss (nats), half of its 95 % interval, costs; NaN where not
    known.

    With several seeds the interval is Student's over them; with one it is that of the evaluation alone (1.96 standard
    errors).
    """

    name: str
    pattern: str
    seeds: int
    loss: float
    half_width: float
    flops: float
    relative_flops: float
    latency_ms: float
    parameters: float
    perplexity: float
    bits_per_character: float


def results(run: Run) -> list[Result]:
    """The comparison over seeds, best first."""
    rows = [row for row in run.comparison if row.get("held_out_loss") is not None]
    found = []
    for name in dict.fromkeys(row["name"] for row in rows):
        own = [row for row in rows if row["name"] == name]
        losses = np.array([row["held_out_loss"] for row in own], float)
        alone = 1.96 * _mean(own, "standard_error") if len(own) == 1 else interval(losses)
        found.append(
            Result(
                name=name,
                pattern=str(own[0].get("pattern", "")),
                seeds=len(own),
                loss=float(losses.mean()),
                half_width=alone,
                flops=_mean(own, "flops_per_token"),
                relative_flops=_mean(own, "relative_flops"),
                latency_ms=_mean(own, "latency_ms"),
                parameters=_mean(own, "parameters"),
                perplexity=_mean(own, "perplexity"),
                bits_per_character=_mean(own, "bits_per_character"),
            )
        )
    return sorted(found, key=lambda one: one.loss)


def _mean(rows: list[dict[str, Any]], key: str) -> float:
    values = [row.get(key) for row in rows]
    return float(np.mean(values)) if all(isinstance(value, (int, float)) for value in values) else math.nan


def interval(values: np.ndarray) -> float:
    """Half the width of Student's 95 % interval of the mean; NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan
    from scipy.special import stdtrit  # the t quantile; scipy.stats would take a second to load

    return float(stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / math.sqrt(len(values)))


def pareto(found: list[Result], cost: str) -> list[Result]:
    """Those that no other one beats in `cost` (a field's name) without losing in loss, by rising cost."""
    front: list[Result] = []
    known = (one for one in found if math.isfinite(getattr(one, cost)))
    for one in sorted(known, key=lambda one: (getattr(one, cost), one.loss)):
        if not front or one.loss < front[-1].loss:
            front.append(one)
    return front


def cost_against_loss_size(run: Run) -> tuple[float, float]:
    """Width and height in inches."""
    return 8.0 + 3.8 * len(_costs_known(results(run))), max(
        4.6, 1.2 + 0.3 * len({row["name"] for row in run.comparison})
    )


def draw_cost_against_loss(run: Run, target: Target) -> None:
    """Held-out loss against FLOPs and against measured time of each architecture, with 95 % intervals and the Pareto
    front."""
    found = results(run)
    if not found:
        raise NothingToDraw(
            "No architecture has been retrained and compared in this run, so loss and cost cannot be set side by side."
        )
    known = _costs_known(found)
    if not known:
        raise NothingToDraw(
            "comparison.json gives no cost for its architectures, so loss and cost cannot be set side by side."
        )
    row = panels(target, [1], len(known))[0]
    for place, (axes, (cost, unit)) in enumerate(zip(row, known.items(), strict=True)):
        _loss_against(axes, found, cost, unit)
        axes.tick_params(labelleft=place == 0)
        axes.sharey(row[0]) if place else axes.set_ylabel("held-out cross-entropy (nats a token)")
    seeds = max(one.seeds for one in found)
    bars = f"bars: 95 % interval over {seeds} seeds" if seeds > 1 else "one seed: bars are the evaluation's noise alone"
    row[0].set_title(f"Loss against cost ({bars})")
    side_legend(target, row[0], labelspacing=0.6, title="held-out loss; filled:\non the Pareto front", alignment="left")


def _costs_known(found: list[Result]) -> dict[str, str]:
    """The cost fields that at least two architectures, or the only one, have, with their units."""
    units = {"flops": "flops_per_token", "latency_ms": "ms"}
    least = min(2, len(found))
    return {
        cost: unit
        for cost, unit in units.items()
        if sum(math.isfinite(getattr(one, cost)) for one in found) >= least > 0
    }


def _loss_against(axes: Axes, found: list[Result], cost: str, unit: str) -> None:
    scale, name = _scale([getattr(one, cost) for one in found], unit)
    front = pareto(found, cost)
    corners = [getattr(one, cost) / scale for one in front]
    axes.step(corners, [one.loss for one in front], where="post", color=GREY, linewidth=1, zorder=1)
    for one, (color, _, marker) in zip(found, looks([one.name for one in found]), strict=True):
        bars = one.half_width if one.half_width > 0 else None
        text = legend_name(f"{one.name}  {one.loss:.3f}") + (f" ± {bars:.3f}" if bars is not None else "")
        face = color if one in front else "white"
        axes.errorbar(
            getattr(one, cost) / scale,
            one.loss,
            yerr=bars,
            fmt=marker,
            color=color,
            capsize=4,
            markersize=9,
            markerfacecolor=face,
            markeredgewidth=1.6,
            elinewidth=1.2,
            label=text,
        )
    axes.set_xlabel({"ms": "measured forward pass (ms)"}.get(unit, name))
    axes.margins(0.12)


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
    scale, unit = (
        (baseline, "")
        if math.isfinite(baseline) and baseline > 0
        else _scale(list(searches[0].expected_cost()), searches[0].cost_unit)
    )
    for place, search in enumerate(searches):
        label = f"expected, seed {search.seed}" if len(searches) > 1 else "expected, from the probabilities"
        axes.plot(
            search.steps,
            search.expected_cost() / scale,
            color=INK,
            linestyle=("-", "--", ":", "-.")[place % 4],
            label=label,
        )
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


def latency_size(run: Run) -> tuple[float, float]:
    """Width and height in inches."""
    return 9.0, 1.6 + 0.36 * max(len(latency_rows(run.latency)), 4)


def draw_latency(run: Run, target: Target) -> None:
    """The measured latency of each candidate with its spread, in the palette's order."""
    rows = latency_rows(run.latency)
    if not rows:
        raise NothingToDraw("No latency has been measured for this run (search.cost was not latency).")
    palette = palette_of(run, rows).only(rows)
    axes = panels(target, [1])[0][0]
    top = max(median + (0 if math.isnan(spread) else spread) for median, spread in rows.values())
    for place, style in enumerate(palette):
        median, spread = rows[style.label]
        axes.barh(place, median, 0.72, color=style.color, edgecolor=style.ink, hatch=style.hatch, linewidth=0)
        known = 0 if math.isnan(spread) else spread / 2  # the spread is the distance between the quartiles
        if known:
            axes.errorbar(median, place, xerr=known, color=INK, capsize=3, elinewidth=1.2)
        axes.text(median + known + 0.015 * top, place, f"{median:.3g}", va="center", fontsize=10)
    axes.set_yticks(range(len(rows)), [f"{shorten(style.label)}  {style.tag}" for style in palette])
    axes.invert_yaxis()
    axes.set_xlim(0, top * 1.12)
    measured = {key: value for key, value in run.latency.items() if not isinstance(value, (dict, list))}
    measured |= run.latency["lengths"] if isinstance(run.latency.get("lengths"), dict) else {}
    axes.set_xlabel("median latency (ms); whisker: half the spread to each side")
    axes.set_title(
        wrap("Measured latency: " + ", ".join(f"{key} {value}" for key, value in measured.items()), 64), fontsize=11
    )


def latency_rows(latency: dict[str, Any] | None) -> dict[str, tuple[float, float]]:
    """Label -> (median, spread) in ms of latency.json's candidates; spread NaN where the file has none."""
    table = (latency or {}).get("candidates")
    rows = {}
    for label, entry in table.items() if isinstance(table, dict) else []:
        numbers = entry if isinstance(entry, dict) else {"median_ms": entry}
        median, spread = numbers.get("median_ms"), numbers.get("spread_ms")
        if isinstance(median, (int, float)):
            rows[label] = (float(median), float(spread) if isinstance(spread, (int, float)) else math.nan)
    return rows


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
