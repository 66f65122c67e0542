"""Pictures of losses over steps: the search's, and the retrained architectures'."""

import numpy as np
from matplotlib.axes import Axes

from nas.pictures.plots_base import (
    GREY,
    LEGIBLE_POINTS,
    NothingToDraw,
    Target,
    legend_name,
    panels,
    runs_of,
    shade_warm_up,
    side_legend,
    thin,
    warm_up_end,
)
from nas.results.run_files import Run

SUPERNET, DERIVED, GAP = "#1037D5", "#B03009", "#F5D9B5"
# Architectures are no blocks, so they get colours of their own, told apart by line and marker too.
ARCHITECTURE_LOOKS = (
    ("#111111", "-", "o"),
    ("#B03009", "--", "s"),
    ("#1037D5", "-.", "^"),
    ("#2B7B53", ":", "D"),
    ("#EA9247", "-", "v"),
    ("#5A156E", "--", "P"),
    ("#00838F", "-.", "X"),
    ("#777777", "-", "*"),
    ("#F33AAF", ":", "<"),
    ("#7A5C3E", "--", ">"),
)


def losses_size(run: Run) -> tuple[float, float]:
    """Width and height in inches."""
    return (9.5, 4.6) if len(runs_of(run)) == 1 else (min(4.6 * len(runs_of(run)), 15), 4.4)


def draw_losses(run: Run, target: Target) -> None:
    """Training, held-out and derived loss over the search's steps, the gap between supernet and derived net shaded."""
    kinds = ("loss", "held_out_loss")
    logged = [(name, one) for name, one in runs_of(run) if any(finite(one.metrics, kind) is not None for kind in kinds)]
    if not logged:
        raise NothingToDraw("No loss of the search has been logged in this run.")
    row = panels(target, [1], len(logged))[0]
    for place, (axes, (name, one)) in enumerate(zip(row, logged, strict=True)):
        _search_losses(axes, one)
        axes.set_title(name or "Losses of the search")
        axes.set_xlabel("search step")
        if place == 0:
            axes.set_ylabel("cross-entropy (nats a token)")
        if place:
            axes.sharey(row[0])
            axes.tick_params(labelleft=False)
    _legend_below(target, row[0])


def retraining_size(run: Run) -> tuple[float, float]:
    """Width and height in inches."""
    return 10.0, max(4.2, 1.2 + 0.3 * len({name for name, _ in run.retrained}))


def draw_retraining(run: Run, target: Target) -> None:
    """Held-out loss of each retrained architecture over its steps: mean over seeds, with the seeds' range shaded."""
    curves = {name: _over_seeds(run, name) for name in dict.fromkeys(name for name, _ in run.retrained)}
    curves = {name: curve for name, curve in curves.items() if curve is not None}
    if not curves:
        raise NothingToDraw("No architecture has been retrained in this run, so there are no curves to compare.")
    axes = panels(target, [1])[0][0]
    order = sorted(curves, key=lambda name: curves[name][1][-1])
    for name, (color, line, marker) in zip(order, looks(order), strict=True):
        steps, mean, low, high = curves[name]
        axes.plot(
            steps,
            mean,
            color=color,
            linestyle=line,
            marker=marker,
            markevery=max(1, len(steps) // 8),
            markersize=5,
            label=legend_name(f"{name}  {mean[-1]:.3f}"),
        )
        axes.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0)
    axes.set_xlabel("training step")
    axes.set_ylabel("held-out cross-entropy (nats a token)")
    axes.set_title("Trained from scratch, side by side (best first, with the last held-out loss)")
    _zoom(axes, [curve[1] for curve in curves.values()])
    side_legend(target, axes)


def looks(names: list[str]) -> list[tuple[str, str, str]]:
    """Colour, line and marker for each architecture's place in `names`."""
    return [ARCHITECTURE_LOOKS[place % len(ARCHITECTURE_LOOKS)] for place in range(len(names))]


def finite(metrics: dict[str, np.ndarray], key: str) -> np.ndarray | None:
    """Which lines have a finite number under `key` [lines] bool; None where no line has."""
    column = metrics.get(key)
    if column is None or column.dtype.kind != "f" or not np.isfinite(column).any():
        return None
    return np.isfinite(column)


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """The mean of each value and up to `window` - 1 values before it."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    return (sums[ends] - sums[starts]) / (ends - starts)


def _search_losses(axes: Axes, run: Run) -> None:
    metrics = run.metrics
    shade_warm_up(axes, warm_up_end(run, metrics), label=True)
    there = finite(metrics, "loss")
    if there is not None:
        steps, loss = metrics["step"][there], metrics["loss"][there]
        picked = thin(len(steps), 4 * LEGIBLE_POINTS)
        axes.plot(
            steps[picked],
            smooth(loss, max(1, len(loss) // 40))[picked],
            color=GREY,
            linewidth=1,
            label="supernet, training batches",
        )
    held_out, derived = finite(metrics, "held_out_loss"), finite(metrics, "derived_loss")
    if held_out is not None:
        axes.plot(
            metrics["step"][held_out],
            metrics["held_out_loss"][held_out],
            color=SUPERNET,
            marker="o",
            markersize=4,
            label="supernet, held out",
        )
    if derived is not None:
        axes.plot(
            metrics["step"][derived],
            metrics["derived_loss"][derived],
            color=DERIVED,
            linestyle="--",
            marker="s",
            markersize=4,
            label="derived net, inherited weights, held out",
        )
    if held_out is not None and derived is not None and (held_out & derived).any():
        both = held_out & derived
        axes.fill_between(
            metrics["step"][both],
            metrics["held_out_loss"][both],
            metrics["derived_loss"][both],
            color=GAP,
            linewidth=0,
            zorder=0.5,
            label="gap",
        )
        gap = (metrics["derived_loss"] - metrics["held_out_loss"])[both][-1]
        axes.set_title(f"last gap {gap:+.3f}", loc="right", fontsize=10)
    axes.margins(x=0.01)


def _legend_below(target: Target, axes: Axes) -> None:
    if isinstance(target, Axes):
        axes.legend(loc="upper right", fontsize=9)
    else:
        target.legend(
            handles=axes.get_legend_handles_labels()[0], loc="outside lower center", ncols=4, columnspacing=1.2
        )


def _over_seeds(run: Run, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """Steps, mean, least and greatest held-out loss over the seeds that logged it, at the steps that all of them
    have."""
    series = []
    for (other, _), metrics in run.retrained.items():
        there = finite(metrics, "held_out_loss") if other == name else None
        if there is not None:
            series.append((metrics["step"][there], metrics["held_out_loss"][there]))
    if not series:
        return None
    steps = series[0][0]
    for other_steps, _ in series[1:]:
        steps = np.intersect1d(steps, other_steps)
    if not len(steps):
        return None
    values = np.stack([loss[np.isin(at, steps)] for at, loss in series])
    return steps, values.mean(axis=0), values.min(axis=0), values.max(axis=0)


def _zoom(axes: Axes, curves: list[np.ndarray]) -> None:
    """Leave the first fall out of sight, so that the last, small differences can be seen."""
    last = [curve[-1] for curve in curves]
    high = max(float(curve[len(curve) // 4]) for curve in curves)
    low = min(float(curve.min()) for curve in curves)
    if high > low and max(last) < high:
        axes.set_ylim(low - 0.08 * (high - low), high + 0.05 * (high - low))
