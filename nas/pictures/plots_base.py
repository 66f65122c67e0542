"""What every picture shares: the record of a picture, where it may be drawn, ticks, legends and thinning."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Patch, Rectangle

from nas.pictures.palette import Palette, shorten
from nas.results.run_files import Run
from nas.results.run_readers import Search, layer_labels

# DejaVu Sans comes with matplotlib, so the same run gives the same bytes on every machine.
RC = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.labelsize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "legend.fontsize": 10,
    "legend.frameon": False,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "hatch.linewidth": 0.5,
    "svg.hashsalt": "par-search",
    "svg.fonttype": "path",
    "text.parse_math": False,
    "figure.dpi": 100,
    "savefig.dpi": 110,
    "lines.linewidth": 1.6,
    "axes.grid": False,
    "figure.constrained_layout.h_pad": 0.06,
}
GREY, FAINT = "#666666", "#E8E8E8"
LEGIBLE_POINTS = 160  # a small panel is about this many pixels wide; more points only make the SVG larger
Target = Axes | Figure | SubFigure


class NothingToDraw(Exception):
    """Why a picture would be empty, as a sentence for the reader."""


@dataclass(frozen=True)
class Picture:
    """One picture: `draw(run, target)` on an axes or a figure, `size(run)` its width and height in inches."""

    name: str
    title: str
    caption: str
    size: Callable[[Run], tuple[float, float]]
    draw: Callable[[Run, Target], None]


def panels(target: Target, heights: Sequence[float], columns: int = 1, wide: Sequence[int] = ()) -> list[list[Axes]]:
    """Rows of axes with these relative heights inside a figure, or inside the area of an axes; `wide` rows have one
    axes."""
    if isinstance(target, Axes):
        return _inset_panels(target, heights, columns, wide)
    grid = target.add_gridspec(len(heights), columns, height_ratios=heights)
    return [
        [target.add_subplot(grid[row, :])]
        if row in wide
        else [target.add_subplot(grid[row, k]) for k in range(columns)]
        for row in range(len(heights))
    ]


def say(axes: Axes, sentence: str) -> None:
    """Write a sentence where a panel would be empty."""
    axes.set_axis_off()
    width = max(24, int(axes.get_window_extent().width / 7.5))
    axes.text(0.5, 0.5, wrap(sentence, width), ha="center", va="center", transform=axes.transAxes, color=GREY)


def wrap(text: str, width: int) -> str:
    """Break text into lines of at most `width` characters between words."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def thin(count: int, at_most: int) -> np.ndarray:
    """At most `at_most` indices of `count`, evenly spread, the first and the last among them."""
    if count <= at_most:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, at_most).round().astype(int))


def palette_of(run: Run, more: Iterable[str] = ()) -> Palette:
    """The palette of the run's candidates and `more` labels; letters of blocks that are not registered here come from
    the run's architecture files.
    """
    letters: dict[str, str] = {}
    labels = list(run.candidates)
    for arch in run.architectures.values():
        pattern = arch.get("pattern")
        if isinstance(pattern, str) and len(pattern) == len(arch["layers"]):
            letters.update({str(layer["block"]): letter for layer, letter in zip(arch["layers"], pattern, strict=True)})
        labels += layer_labels(arch)
    return Palette([*labels, *more], letters)


def need_searches(run: Run) -> list[Search]:
    """The run's searches; NothingToDraw where there is none."""
    if not run.searches:
        raise NothingToDraw("No search has been recorded in this run, so there are no probabilities to show.")
    return run.searches


def layer_ticks(axes: Axes, layers: int, *, inches: float) -> None:
    """Number the layers from 0 on the x axis, as densely as `inches` of width allow, and set its limits."""
    step = next(step for step in (1, 2, 4, 5, 8, 10, 16, 20, 50, 10**6) if layers / step * 0.24 <= max(inches, 0.3))
    axes.set_xticks(range(0, layers, step))
    axes.set_xlim(-0.5, layers - 0.5)
    axes.set_xlabel("layer (0 is next to the embedding)")


def legend_name(name: str) -> str:
    """The name as a legend shows it: matplotlib leaves out labels that begin with an underscore."""
    return f" {name}" if name.startswith("_") else name


def candidate_legend(target: Target, axes: Axes, palette: Palette) -> None:
    """The legend of candidates, colour, hatch and letter, to the right of everything drawn on `target`."""
    handles = [
        Patch(
            facecolor=style.color,
            edgecolor=style.ink,
            hatch=style.hatch,
            linewidth=0,
            label=f"{style.tag}  {shorten(style.label)}",
        )
        for style in palette
    ]
    side_legend(target, axes, handles=handles, handlelength=1.4, handleheight=1.1, labelspacing=0.35)


def side_legend(target: Target, axes: Axes, **look: Any) -> None:
    """A legend to the right of a whole figure, or of the axes where only an axes was given."""
    if isinstance(target, Axes):
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.02), borderaxespad=0, **look)
        return
    if "handles" not in look:
        look["handles"] = axes.get_legend_handles_labels()[0]
    target.legend(loc="outside right upper", **look)


def block_cell(axes: Axes, x: float, y: float, size: tuple[float, float], style: Any) -> Rectangle:
    """A rectangle centred on (x, y) in a candidate's colour and hatch."""
    cell = Rectangle(
        (x - size[0] / 2, y - size[1] / 2),
        *size,
        facecolor=style.color,
        edgecolor=style.ink,
        hatch=style.hatch,
        linewidth=0,
    )
    cell.set_gid(f"{style.tag}-{x:g}-{y:g}")
    axes.add_patch(cell)
    return cell


def warm_up_end(run: Run, metrics: dict[str, np.ndarray]) -> float:
    """The last warm-up step: as logged, else as configured; 0 without warm-up."""
    if "phase" in metrics and np.any(metrics["phase"] == "warmup"):
        return float(metrics["step"][metrics["phase"] == "warmup"].max())
    try:
        return float(run.setting("search.warmup_steps", 0))
    except (TypeError, ValueError):
        return 0.0


def shade_warm_up(axes: Axes, end: float, *, label: bool = False) -> None:
    """Shade the steps of the warm-up, in which the alphas are frozen."""
    if end > 0:
        axes.axvspan(0, end, color=FAINT, zorder=0, linewidth=0)
        if label:
            axes.text(
                end / 2,
                0.03,
                "warm-up",
                ha="center",
                va="bottom",
                color=GREY,
                fontsize=9,
                transform=axes.get_xaxis_transform(),
            )


def line_edge(color: str) -> list[Any]:
    """Path effects that give a line of a light colour a dark edge, so that it can be seen on paper."""
    from matplotlib.patheffects import Normal, Stroke

    from nas.pictures.palette import luminance

    return [Stroke(linewidth=2.6, foreground="#777777"), Normal()] if luminance(color) > 0.55 else [Normal()]


def runs_of(run: Run) -> list[tuple[str, Run]]:
    """The searched runs with a name for each: the run itself, or its seeds."""
    if run.search or not run.seeds:
        return [("", run)]
    return [(f"seed {seed}", sub) for seed, sub in run.seeds.items()]


def _inset_panels(target: Axes, heights: Sequence[float], columns: int, wide: Sequence[int]) -> list[list[Axes]]:
    if len(heights) == 1 and columns == 1:
        return [[target]]
    target.set_axis_off()
    gap, total = 0.35 / len(heights), sum(heights)
    unit, top, rows = (1 - gap * (len(heights) - 1)) / total, 1.0, []
    for row, height in enumerate(heights):
        count = 1 if row in wide else columns
        width = (1 - 0.15 * (count - 1) / count) / count
        rows.append(
            [
                target.inset_axes((k * (width + 0.15 / count), top - height * unit, width, height * unit))
                for k in range(count)
            ]
        )
        top -= height * unit + gap
    return rows
