"""Pictures of the probabilities: heat map, stacked bars by depth, trajectories, entropy and margin."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from nas.pictures.palette import INK, Palette, ink_on, shorten
from nas.pictures.plots_base import (
    FAINT,
    GREY,
    LEGIBLE_POINTS,
    Target,
    candidate_legend,
    layer_ticks,
    line_edge,
    need_searches,
    palette_of,
    panels,
    runs_of,
    say,
    shade_warm_up,
    thin,
    warm_up_end,
)
from nas.results.run_files import Run
from nas.results.run_readers import Search

TRAJECTORY_COLUMNS = {4: 4, 5: 5, 6: 6, 12: 6}


def heat_map_size(run: Run) -> tuple[float, float]:
    """Width and height in inches."""
    rows = len(run.candidates) * (2 if len(run.searches) > 1 else 1)
    return _depth_width(run), 1.6 + 0.34 * rows + (0.9 if len(run.searches) > 1 else 0)


def draw_heat_map(run: Run, target: Target) -> None:
    """Final probabilities, candidates by layers, the winner of each layer outlined; below, the spread over seeds."""
    need_searches(run)
    final = run.final()  # [K, N, C]
    palette = palette_of(run)
    rows = panels(target, [1] * (2 if len(final) > 1 else 1))
    title = f"Mean probability over {len(final)} seeds" if len(final) > 1 else "Probability of each candidate"
    _heat(rows[0][0], final.mean(axis=0), run, palette, (title + " (outlined: the winner)", "Blues", 1.0))
    if len(final) > 1:
        spread = final.std(axis=0, ddof=1)
        _heat(rows[1][0], spread, run, palette, ("Standard deviation over seeds", "Greys", 0.5))


def stacked_size(run: Run) -> tuple[float, float]:
    """Width and height in inches."""
    return _depth_width(run), max(3.6, 1.3 + 0.24 * len(run.candidates))


def draw_stacked(run: Run, target: Target) -> None:
    """Final probabilities stacked to 1 in each layer; with several seeds, a bar a seed side by side."""
    need_searches(run)
    final = run.final()
    palette = palette_of(run)
    axes = panels(target, [1])[0][0]
    width = 0.86 / len(final)
    for k, table in enumerate(final):
        x = np.arange(table.shape[0]) + (k - (len(final) - 1) / 2) * width
        bottom = np.zeros(table.shape[0])
        for style in map(palette.__getitem__, _ordered(run, palette)):
            height = table[:, run.candidates.index(style.label)]
            axes.bar(
                x,
                height,
                width * 0.96,
                bottom,
                color=style.color,
                edgecolor=style.ink,
                hatch=style.hatch,
                linewidth=0,
                label=style.label if k == 0 else None,
            )
            bottom += height
    layer_ticks(axes, final.shape[1], inches=stacked_size(run)[0] - 4)
    axes.set_ylim(0, 1)
    axes.set_ylabel("probability")
    several = f"; thin bars: {len(final)} seeds" if len(final) > 1 else ""
    axes.set_title(f"Share of each candidate{several}")
    candidate_legend(target, axes, palette.only(run.candidates))


def trajectories_size(run: Run) -> tuple[float, float]:
    """Width and height in inches."""
    columns, rows = _trajectory_grid(run.layers)
    return max(9.5, 3.2 + 1.45 * columns), max(2.0 + 1.35 * rows, 1 + 0.24 * len(run.candidates))


def draw_trajectories(run: Run, target: Target) -> None:
    """One small panel a layer: every candidate's probability over the search's steps; above, the temperature."""
    searches = need_searches(run)
    steps, table = _mean_trajectory(searches)  # [S], [S, N, C]
    palette = palette_of(run)
    columns, rows = _trajectory_grid(table.shape[1])
    grid = panels(target, [0.7, *[1.0] * rows], columns, wide=[0])
    first = runs_of(run)[0][1]
    warm = warm_up_end(first, first.metrics)
    _temperature(grid[0][0], first, warm, steps)
    candidate_legend(target, grid[0][0], palette.only(run.candidates))
    picked = thin(len(steps), LEGIBLE_POINTS)
    for layer in range(columns * rows):
        axes = grid[1 + layer // columns][layer % columns]
        if layer >= table.shape[1]:
            axes.set_axis_off()
            continue
        _trajectory(axes, steps[picked], table[picked, layer], run, palette)
        winner = run.candidates[table[-1, layer].argmax()]
        axes.set_title(f"{layer}: {palette[winner].tag} {table[-1, layer].max():.2f}", fontsize=10, pad=3)
        shade_warm_up(axes, warm)
        axes.tick_params(labelleft=layer % columns == 0, labelbottom=layer + columns >= table.shape[1])
    grid[1][0].set_ylabel("probability")
    grid[-1][0].set_xlabel("search step")


def certainty_size(run: Run) -> tuple[float, float]:
    """Width and height in inches."""
    return max(10.5, _depth_width(run) - 2), 6.4


def draw_certainty(run: Run, target: Target) -> None:
    """Entropy and margin over steps (mean and range over layers), and the final margin of each layer."""
    searches = need_searches(run)
    palette = palette_of(run)
    (top,), (middle,), (bottom,) = panels(target, [1, 1, 1.1])
    uniform = np.log(len(run.candidates))
    first = runs_of(run)[0][1]
    for axes, values, label in ((top, Search.entropy, "entropy (nats)"), (middle, Search.margin, "margin")):
        for place, search in enumerate(searches):
            picked = thin(len(search.steps), 4 * LEGIBLE_POINTS)
            series = values(search)[picked]
            axes.plot(
                search.steps[picked],
                series.mean(axis=1),
                color=INK,
                linestyle=_dash(place),
                label=f"seed {search.seed}" if len(searches) > 1 else "mean over layers",
            )
            if len(searches) == 1:
                axes.fill_between(
                    search.steps[picked],
                    series.min(axis=1),
                    series.max(axis=1),
                    color="#BBBBBB",
                    linewidth=0,
                    label="least to most certain layer",
                )
        shade_warm_up(axes, warm_up_end(first, first.metrics), label=axes is top)
        axes.set_ylabel(label)
        axes.margins(x=0)
        axes.set_ylim(bottom=0)
    top.axhline(uniform, color=GREY, linestyle=":", linewidth=1)
    top.set_ylim(0, uniform * 1.18)
    top.text(
        1, uniform, "uniform", ha="right", va="bottom", color=GREY, fontsize=9, transform=top.get_yaxis_transform()
    )
    middle.set_ylim(0, 1)
    middle.set_xlabel("search step")
    top.set_title("Entropy falls and the winner's lead grows as the search decides")
    middle.legend(loc="upper left")
    _final_margins(bottom, run, palette)
    candidate_legend(target, bottom, palette.only(run.candidates))


def _final_margins(axes: Axes, run: Run, palette: Palette) -> None:
    final = run.final().mean(axis=0)
    ranked = np.sort(final, axis=1)
    lead = ranked[:, -1] - (ranked[:, -2] if ranked.shape[1] > 1 else 0)
    for layer, height in enumerate(lead):
        style = palette[run.candidates[final[layer].argmax()]]
        axes.bar(layer, height, 0.86, color=style.color, edgecolor=style.ink, hatch=style.hatch, linewidth=0)
        if len(lead) <= 40:
            axes.text(layer, height + 0.02, style.tag, ha="center", va="bottom", fontsize=9)
    layer_ticks(axes, len(lead), inches=certainty_size(run)[0] - 3.5)
    axes.set_ylim(0, 1.12)
    axes.set_ylabel("final margin")


def _heat(axes: Axes, table: np.ndarray, run: Run, palette: Palette, look: tuple[str, str, float]) -> None:
    title, colors, top = look
    labels = _ordered(run, palette)
    image = table[:, [run.candidates.index(label) for label in labels]].T  # [C, N]
    layers = image.shape[1]
    mesh = axes.pcolormesh(
        np.arange(layers + 1) - 0.5,
        np.arange(len(labels) + 1) - 0.5,
        image,
        cmap=colors,
        vmin=0,
        vmax=top,
        edgecolors="white",
        linewidth=0.6 if layers <= 32 else 0.3,
    )
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_yticks(range(len(labels)), [f"{shorten(label)}  {palette[label].tag}     " for label in labels])
    axes.tick_params(length=0)
    for row, style in enumerate(map(palette.__getitem__, labels)):  # the block's own colour beside its name
        look = {"facecolor": style.color, "edgecolor": style.ink, "hatch": style.hatch, "linewidth": 0}
        axes.add_patch(
            Rectangle((-0.018, row - 0.32), 0.013, 0.64, clip_on=False, transform=axes.get_yaxis_transform(), **look)
        )
    if top == 1.0:
        for layer, row in enumerate(image.argmax(axis=0)):
            axes.add_patch(Rectangle((layer - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=INK, linewidth=1.4))
    if layers <= 16:
        _write_values(axes, image, mesh)
    for side in axes.spines.values():
        side.set_visible(False)
    layer_ticks(axes, layers, inches=heat_map_size(run)[0] - 4)
    axes.set_title(title)
    axes.figure.colorbar(mesh, ax=axes, fraction=0.05, pad=0.015, aspect=12).outline.set_visible(False)


def _write_values(axes: Axes, image: np.ndarray, mesh: object) -> None:
    for row, layer in np.ndindex(image.shape):
        red, green, blue = (round(255 * part) for part in mesh.to_rgba(image[row, layer])[:3])
        text = f"{image[row, layer]:.2f}".removeprefix("0")
        axes.text(
            layer, row, text, ha="center", va="center", fontsize=9, color=ink_on(f"#{red:02X}{green:02X}{blue:02X}")
        )


def _temperature(axes: Axes, run: Run, warm: float, steps: np.ndarray) -> None:
    values = run.metrics.get("temperature")
    if values is None or values.dtype.kind != "f" or np.isnan(values).all():
        say(axes, "No temperature was logged: this relaxation uses none.")
        return
    if run.setting("search.relaxation") == "sampled":
        say(
            axes,
            "Layouts are drawn at temperature 1 throughout. Below: layer, its winner, the winner's share; grey: the "
            "warm-up.",
        )
        return
    there = ~np.isnan(values)
    axes.plot(run.metrics["step"][there], values[there], color=GREY)
    axes.set_yscale("log") if values[there].min() > 0 and values[there].max() / values[there].min() > 4 else None
    axes.minorticks_off()
    low, high = values[there].min(), values[there].max()
    axes.set_yticks(
        [low, high] if high > low else [low], [f"{value:.3g}" for value in ([low, high] if high > low else [low])]
    )
    axes.set_xlim(0, max(steps[-1], 1))
    axes.set_ylabel("temperature")
    axes.set_title("Temperature; below: layer, its winner, the winner's share")
    shade_warm_up(axes, warm, label=True)


def _trajectory(axes: Axes, steps: np.ndarray, table: np.ndarray, run: Run, palette: Palette) -> None:
    for label in reversed(_ordered(run, palette)):
        style = palette[label]
        values, dashes = table[:, run.candidates.index(label)], style.dashes or (None, None)
        axes.plot(
            steps,
            values,
            color=style.color,
            dashes=dashes,
            linewidth=1.5,
            path_effects=line_edge(style.color),
            label=label,
        )
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.5, 1], ["0", ".5", "1"])
    axes.set_xlim(0, max(steps[-1], 1))
    axes.set_xticks([0, int(steps[-1])] if steps[-1] > 0 else [0])
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)


def _mean_trajectory(searches: list[Search]) -> tuple[np.ndarray, np.ndarray]:
    """Steps that all seeds recorded, and the mean over seeds of the probabilities there."""
    steps = searches[0].steps
    for search in searches[1:]:
        steps = np.intersect1d(steps, search.steps)
    tables = [search.probabilities[np.isin(search.steps, steps)] for search in searches]
    return steps, np.mean(tables, axis=0)


def _ordered(run: Run, palette: Palette) -> list[str]:
    return [label for label in palette.labels if label in run.candidates]


def _trajectory_grid(layers: int) -> tuple[int, int]:
    columns = TRAJECTORY_COLUMNS.get(layers, min(max(layers, 1), 8))
    return columns, -(-max(layers, 1) // columns)


def _depth_width(run: Run) -> float:
    return float(np.clip(4.6 + 0.42 * run.layers, 10, 15))


def _dash(place: int) -> str | tuple[int, tuple[int, ...]]:
    return ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))[place % 5]
