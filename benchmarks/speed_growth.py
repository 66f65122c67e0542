"""How the average step of `sampled` grows with the number of candidates, with layers, length and batch, beside the
plain step.

All settings take turns in one process. Candidates are added so that their mean cost stays within five per cent, cheap
and dear ones in the same proportion: it is their number that grows. The warm-up's mixture runs all of them, so it is in
`whole search`.
"""

import dataclasses
from pathlib import Path

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator
from speed_sizes import Sizes, build_bench, in_turn, quartiles
from speed_steps import AVERAGE, PLAIN, WHOLE, add_averages, own_turns

from nas.pictures.plots_base import GREY, RC

PICTURE = Path(__file__).with_name("growth.png")
COUNTS = (2, 3, 5, 7, 9, 12)
AXES = {"candidates": COUNTS, "layers": (4, 8, 12, 24), "seq_len": (32, 64, 128, 256), "batch_size": (8, 16, 32)}
TITLES = {"candidates": "candidates", "layers": "layers", "seq_len": "tokens a row", "batch_size": "rows a batch"}
LINES = {
    PLAIN: ("one network's training step", "#111111"),
    AVERAGE: ("search step after the warm-up", "#1037D5"),
    WHOLE: ("mean step of the whole search", "#B03009"),
}


def candidates(count: int, d_model: int) -> tuple[str, ...]:
    """The first `count` of twelve; dense synthesizers, which take longer than their operations say, are not among
    them."""
    return (
        "self_attention",
        f"feed_forward[d_inner={2 * d_model}]",
        f"feed_forward[d_inner={5 * d_model // 2}]",
        "feed_forward",
        "random_synthesizer",
        "factorized_random_synthesizer",
        f"feed_forward[d_inner={7 * d_model // 2}]",
        f"feed_forward[d_inner={5 * d_model}]",
        "identity",
        "self_attention[heads=2]",
        "self_attention[heads=8]",
        "factorized_random_synthesizer[rank=4]",
    )[:count]


def settings_of(sizes: Sizes) -> dict[tuple[str, int], Sizes]:
    """(axis, value) -> the sizes with that value."""
    found = {}
    for axis, values in AXES.items():
        for value in values:
            change = {"blocks": candidates(value, sizes.d_model)} if axis == "candidates" else {axis: value}
            found[axis, value] = dataclasses.replace(sizes, **change)
    return found


def measured(sizes: Sizes, rounds: int) -> dict[tuple[str, int], dict[str, list[float]]]:
    """(axis, value) -> step -> milliseconds of each round."""
    turns = {}
    for setting, at in settings_of(sizes).items():
        turns |= {(*setting, name): turn for name, turn in own_turns(build_bench(at), ("sampled",)).items()}
    times = in_turn(turns, rounds)
    found: dict[tuple[str, int], dict[str, list[float]]] = {}
    for (axis, value, name), values in times.items():
        found.setdefault((axis, value), {})[name] = values
    for values in found.values():
        add_averages(values, ("sampled",))
    return found


def print_growth(sizes: Sizes, rounds: int, picture: Path) -> None:
    """The table, and the picture."""
    print(
        f"{sizes}, but for the value that grows, {rounds} rounds; medians in ms, ratios to the plain step of the "
        "same size"
    )
    print(f"candidates in order: {', '.join(candidates(max(COUNTS), sizes.d_model))}")
    medians = {
        at: {name: quartiles(values[name])[1] for name in LINES} for at, values in measured(sizes, rounds).items()
    }
    print(f"{'':<18}{'plain':>9}{'average step':>21}{'whole search':>21}")
    for (axis, value), found in medians.items():
        ratios = "".join(f"{found[name]:10.2f}  ratio {found[name] / found[PLAIN]:.2f}" for name in (AVERAGE, WHOLE))
        print(f"{axis:<12}{value:>6}{found[PLAIN]:9.2f}{ratios}")
    draw(sizes, medians, picture)


def draw(sizes: Sizes, medians: dict[tuple[str, int], dict[str, float]], picture: Path) -> None:
    """One panel an axis, with the ratios to the plain step beside the points."""
    with pyplot.rc_context(RC):
        figure, panels = pyplot.subplots(1, len(AXES), figsize=(15, 4.4), layout="constrained")
        for panel, (axis, values) in zip(panels, AXES.items(), strict=True):
            draw_axis(panel, values, {name: [medians[axis, value][name] for value in values] for name in LINES})
            panel.set_xlabel(TITLES[axis])
        panels[0].set_ylabel("ms a step (median)")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
        figure.supxlabel(
            f"{sizes}, where not said otherwise; logarithmic axes; numbers: ratio to the training step",
            fontsize=10,
            color=GREY,
        )
        figure.savefig(picture)
        pyplot.close(figure)


def draw_axis(panel: Axes, values: tuple[int, ...], lines: dict[str, list[float]]) -> None:
    """The three lines over the values."""
    panel.set_xscale("log")
    panel.set_yscale("log")
    for name, heights in lines.items():
        label, color = LINES[name]
        panel.plot(values, heights, "o-", color=color, label=label, markersize=4)
        for value, height, *all_three in zip(values, heights, *lines.values(), strict=True):
            if name != PLAIN:
                panel.annotate(
                    f"{height / all_three[0]:.2f}",
                    (value, height),
                    xytext=(0, 8 if height == max(all_three) else -15),
                    textcoords="offset points",
                    ha="center",
                    color=color,
                    fontsize=9,
                )
    panel.xaxis.set_major_locator(FixedLocator(values))
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_locator(NullLocator())
    panel.margins(x=0.08, y=0.12)
