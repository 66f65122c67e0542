"""Pictures of what the rules read: attention by depth with the change point, agreement of seeds, the sweep."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from nas.pictures.palette import INK, Palette
from nas.pictures.plots_base import (
    GREY,
    NothingToDraw,
    Target,
    block_cell,
    candidate_legend,
    layer_ticks,
    need_searches,
    palette_of,
    panels,
    side_legend,
    wrap,
)
from nas.pictures.plots_losses import ARCHITECTURE_LOOKS
from nas.results.run_files import Run
from supernet.blocks import BLOCKS

RULE_COLOR = "#B03009"


def attention_like(run: Run) -> list[int]:
    """The places, in the files' order, of the candidates whose blocks mix positions."""
    blocks = [label.split("[")[0] for label in run.candidates]
    return [place for place, block in enumerate(blocks) if block in BLOCKS and BLOCKS[block].attention_like]


def rules(run: Run) -> list[dict[str, Any]]:
    """The rules with their evidence: those of par-rule where it is there, else of the first architecture that has
    any."""
    ordered = sorted(run.architectures, key=lambda name: name != "par-rule")
    for name in ordered:
        found = run.architectures[name].get("evidence", {}).get("rules")
        if isinstance(found, list) and found:
            return [rule for rule in found if isinstance(rule, dict) and "rule" in rule]
    return []


def attention_depth_size(run: Run) -> tuple[float, float]:
    """Width and height in inches."""
    return float(np.clip(4.8 + 0.34 * run.layers, 10.5, 15)), 4.6


def draw_attention_depth(run: Run, target: Target) -> None:
    """Probability of attention-like blocks by layer, stacked by kind, a line a seed; cut with interval; counts by
    thirds."""
    need_searches(run)
    places = attention_like(run)
    if not places:
        raise NothingToDraw("No candidate of this search mixes positions, so there is no attention to place by depth.")
    final = run.final()  # [K, N, C]
    layers = final.shape[1]
    palette = palette_of(run)
    axes = panels(target, [1])[0][0]
    bottom = np.zeros(layers)
    shown = [label for label in palette.labels if label in {run.candidates[place] for place in places}]
    for label in shown:
        style, height = palette[label], final.mean(axis=0)[:, run.candidates.index(label)]
        axes.bar(
            range(layers), height, 0.86, bottom, color=style.color, edgecolor=style.ink, hatch=style.hatch, linewidth=0
        )
        bottom += height
    for table in final if len(final) > 1 else []:
        axes.plot(range(layers), table[:, places].sum(axis=1), color=INK, linewidth=0.9, marker=".", markersize=4)
    _thirds(axes, bottom)
    sentence = _mark_region(axes, run, layers)
    width = attention_depth_size(run)[0]
    layer_ticks(axes, layers, inches=width - 3.8)
    axes.set_xlabel(axes.get_xlabel() + "\n" + wrap(sentence, int(10 * (width - 3.8))))
    axes.set_ylim(0, 1.16)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.set_ylabel("probability of attention")
    axes.set_title("Attention-like blocks by depth" + (f"; dots: each of {len(final)} seeds" if len(final) > 1 else ""))
    candidate_legend(target, axes, palette.only(shown))


def agreement_size(run: Run) -> tuple[float, float]:
    """Width and height in inches."""
    return float(np.clip(5.0 + 0.36 * run.layers, 9, 16)), 2.9 + 0.42 * len(run.searches)


def draw_agreement(run: Run, target: Target) -> None:
    """The most probable candidate of each layer for each seed, and below how many of the seeds agree."""
    if len(run.searches) < 2:
        raise NothingToDraw("This run searched with one seed, so it cannot tell whether another seed would agree.")
    palette = palette_of(run)
    final = run.final()
    winners = [[run.candidates[place] for place in table.argmax(axis=1)] for table in final]
    top, low = (row[0] for row in panels(target, [0.42 * len(winners), 1.1]))
    for row, labels in enumerate(winners):
        for layer, label in enumerate(labels):
            block_cell(top, layer, row, (0.94, 0.7), palette[label])
            _letter(top, layer, row, palette, label)
    top.set_ylim(len(winners) - 0.45, -0.55)
    top.set_yticks(range(len(winners)), [f"seed {search.seed}" for search in run.searches])
    top.set_title("Most probable candidate of each layer, seed by seed")
    shares = [
        max(column.count(label) for label in column) / len(column)
        for column in (list(c) for c in zip(*winners, strict=True))
    ]
    low.bar(range(len(shares)), shares, 0.86, color=["#1037D5" if share == 1 else "#9AA5B1" for share in shares])
    low.axhline(1, color=GREY, linewidth=0.8, linestyle=":")
    low.set_ylim(0, 1.1)
    low.set_ylabel("share that\nagrees")
    low.set_title(f"Seeds agree in {sum(share == 1 for share in shares)} of {len(shares)} layers", fontsize=11)
    for axes in (top, low):
        layer_ticks(axes, len(shares), inches=agreement_size(run)[0] - 4)
    top.set_xlabel("")
    top.tick_params(length=0, labelbottom=False)
    for side in top.spines.values():
        side.set_visible(False)
    candidate_legend(target, top, palette.only({label for row in winners for label in row}))


def sweep_size(run: Run) -> tuple[float, float]:
    """Width and height in inches."""
    return 9.5, 4.6


def draw_sweep(run: Run, target: Target) -> None:
    """Loss of rule-built layouts against the ratio, a line a cut, with the baseline and its noise band (PAR, figure
    4)."""
    if run.sweep is None or not run.sweep["points"]:
        raise NothingToDraw("No sweep over ratio and cut has been run here; search.py sweep RUN does it.")
    axes = panels(target, [1])[0][0]
    points = run.sweep["points"]
    for place, cut in enumerate(sorted({point["cut"] for point in points})):
        own = sorted((point for point in points if point["cut"] == cut), key=lambda point: point["ratio"])
        color, line, marker = ARCHITECTURE_LOOKS[(place + 1) % len(ARCHITECTURE_LOOKS)]
        spreads = [point["spread"] if isinstance(point.get("spread"), (int, float)) else 0.0 for point in own]
        axes.errorbar(
            [point["ratio"] for point in own],
            [point["held_out_loss"] for point in own],
            yerr=spreads,
            color=color,
            linestyle=line,
            marker=marker,
            capsize=4,
            elinewidth=1,
            label=f"cut {cut:.3g}",
        )
    _sweep_baseline(axes, run.sweep)
    chosen = next((point for point in points if point.get("name") == run.sweep.get("chosen")), None)
    if chosen:
        axes.plot(
            chosen["ratio"],
            chosen["held_out_loss"],
            marker="o",
            markersize=17,
            markerfacecolor="none",
            color=INK,
            linestyle="none",
            label=f"largest within the band: {chosen['ratio']:g}",
        )
    axes.set_xlabel("ratio p: layers for one attention block")
    axes.set_ylabel("held-out cross-entropy (nats a token)")
    seeds = run.sweep.get("seeds", 1)
    axes.set_title(
        "How far can attention be thinned out?"
        + (f" Bars: spread over {seeds} seeds" if seeds > 1 else " One seed each")
    )
    axes.margins(0.08)
    side_legend(target, axes)


def _sweep_baseline(axes: Axes, sweep: dict[str, Any]) -> None:
    base = sweep.get("baseline", {})
    loss, noise = base.get("held_out_loss"), base.get("noise")
    if isinstance(loss, (int, float)) and isinstance(noise, (int, float)):
        axes.axhspan(loss - noise, loss + noise, color="#DDDDDD", linewidth=0, zorder=0, label="its noise band")
        axes.axhline(loss, color=GREY, linestyle=":", label=f"{base.get('name', 'baseline')} {loss:.3f}")


def _letter(axes: Axes, layer: int, row: int, palette: Palette, label: str) -> None:
    style = palette[label]
    box = {"facecolor": style.color, "edgecolor": "none", "pad": 0.6} if style.hatch else None
    axes.text(layer, row, style.tag, ha="center", va="center", fontsize=9, color=style.ink, bbox=box)


def _thirds(axes: Axes, mass: np.ndarray) -> None:
    """Write the expected number of attention-like blocks above each third of the depth, as the rules count them."""
    if len(mass) < 3:
        return
    for part in np.array_split(np.arange(len(mass)), 3):
        axes.text(
            part.mean(),
            1.06,
            f"{mass[part].sum():.1f} of {len(part)}",
            ha="center",
            va="bottom",
            fontsize=10,
            color=GREY,
        )
        if part[0]:
            axes.plot([part[0] - 0.5] * 2, [1.05, 1.14], color=GREY, linewidth=0.8)


def _mark_region(axes: Axes, run: Run, layers: int) -> str:
    """Draw the cut's borders and their intervals; returns the rule's own sentence, or why there is none."""
    rule = next((rule for rule in rules(run) if rule["rule"] == "cut"), None)
    if rule is None:
        return "No cut has been derived in this run."
    region = rule.get("region")
    if not _two_numbers(region):
        region = [0, rule["value"] * layers] if isinstance(rule.get("value"), (int, float)) else [0, layers]
    for border, key in zip(region, ("start_interval", "end_interval"), strict=True):
        if not 0 < border < layers:
            continue
        between = rule.get(key)
        if _two_numbers(between):
            axes.axvspan(between[0] - 0.5, between[1] - 0.5, ymax=1 / 1.16, color=RULE_COLOR, alpha=0.15, linewidth=0)
        axes.plot(
            [border - 0.5] * 2, [0, 1], color=RULE_COLOR, linewidth=2, linestyle="-" if rule.get("supported") else "--"
        )
    return str(rule.get("reason", ""))


def _two_numbers(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(one, (int, float)) for one in value)
