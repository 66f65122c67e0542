"""Pictures of layouts: derived architectures as coloured strips beside the baselines."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from derive import Architecture
from derive.patterns import expand, interleaved, par_pattern
from nas.pictures.palette import Palette, Style, shorten
from nas.pictures.plots_base import (
    GREY,
    NothingToDraw,
    Target,
    block_cell,
    candidate_legend,
    layer_ticks,
    palette_of,
    panels,
)
from nas.results.run_files import Run
from nas.results.run_readers import layer_labels
from supernet.blocks import candidate_cost, letters, parse_candidate
from supernet.errors import UserError
from supernet.settings import ModelSettings

BASELINES = ("interleaved", "par")


@dataclass(frozen=True)
class Layout:
    """One strip: a candidate's label for each layer, its letters, and the layers where a rule overruled the argmax."""

    name: str
    labels: list[str]
    pattern: str
    overruled: set[int] = field(default_factory=set)
    best: bool = False
    relative_cost: float | None = None


def layouts(run: Run) -> list[Layout]:
    """The run's derived architectures, then what was trained beside them, then interleaved and PAR if not among
    these."""
    palette = palette_of(run)
    best = run.architectures.get("best")
    found = {name: _from_file(name, arch, palette) for name, arch in run.architectures.items() if name != "best"}
    for row in run.comparison:
        if row["name"] not in found and isinstance(row.get("pattern"), str):
            found[row["name"]] = _from_pattern(row["name"], row["pattern"])
    sizes = [len(layout.labels) for layout in found.values()] or [run.layers]
    for name, build in zip(BASELINES, (interleaved, par_pattern), strict=True):
        if name not in found and sizes[0]:
            found[name] = _from_pattern(name, build(sizes[0]))
    chosen = None
    if best is not None:
        chosen = best["name"] if best.get("name") in found else "best"
        found.setdefault(chosen, _from_file("best", best, palette))
    return [
        dataclasses.replace(one, best=name == chosen, relative_cost=_relative_cost(run, one))
        for name, one in found.items()
    ]


def layouts_size(run: Run) -> tuple[float, float]:
    """Width and height in inches."""
    strips = layouts(run)
    longest = max((len(one.labels) for one in strips), default=1)
    return float(np.clip(5.5 + 0.36 * longest, 9, 16)), max(
        2.1 + 0.46 * len(strips), 1.3 + 0.24 * len(_palette(run, strips).labels)
    )


def draw_layouts(run: Run, target: Target) -> None:
    """Each architecture as a strip of coloured, lettered cells, one a layer; a triangle marks an overruled argmax."""
    strips = layouts(run)
    if not strips:
        raise NothingToDraw("Nothing has been derived or compared in this run, so there are no layouts to show.")
    palette = _palette(run, strips)
    axes = panels(target, [1])[0][0]
    longest = max(len(one.labels) for one in strips)
    for row, strip in enumerate(strips):
        _strip(axes, row, strip, palette, letters_fit=longest <= 72)
    axes.set_ylim(len(strips) - 0.4, -0.65)
    axes.set_yticks(range(len(strips)), [("★ " if one.best else "") + shorten(one.name, 28) for one in strips])
    axes.tick_params(axis="y", length=0)
    width = layouts_size(run)[0] - 5
    layer_ticks(axes, longest, inches=width)
    for side in axes.spines.values():
        side.set_visible(False)
    notes = ["★ best of the comparison"] if any(one.best for one in strips) else []
    notes += (
        ["▼ a rule or the budget overruled the most probable candidate here"]
        if any(one.overruled for one in strips)
        else []
    )
    notes += (
        ["% FLOPs of the layers, interleaved of equal depth = 100 %"]
        if any(one.relative_cost for one in strips)
        else []
    )
    axes.set_title("Layouts, derived and hand-made")
    axes.set_xlabel("\n".join([axes.get_xlabel(), *notes]))
    candidate_legend(target, axes, palette)


def draw_architecture(arch: Architecture, target: Target) -> None:
    """One architecture as a strip of coloured, lettered cells, one a layer, without a run around it."""
    labels = [layer.label for layer in arch.layers]
    cost = arch.relative_flops(arch.model.max_len)
    overruled = {entry["layer"] for entry in arch.evidence.get("overruled", [])}
    strip, palette = Layout(arch.name, labels, arch.pattern, overruled, relative_cost=cost), Palette(labels)
    axes = panels(target, [1])[0][0]
    _strip(axes, 0, strip, palette, letters_fit=len(labels) <= 72)
    axes.set_ylim(0.6, -0.65)
    axes.set_yticks([])
    layer_ticks(axes, len(labels), inches=architecture_size(arch)[0] - 5)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_title(f"{shorten(arch.name, 40)}: {100 * cost:.0f} % of the interleaved layers' FLOPs")
    candidate_legend(target, axes, palette)


def architecture_size(arch: Architecture) -> tuple[float, float]:
    """Width and height in inches of `draw_architecture`."""
    kinds = len({layer.label for layer in arch.layers})
    return float(np.clip(5.5 + 0.36 * len(arch.layers), 9, 16)), max(1.9, 1.3 + 0.24 * kinds)


def _strip(axes: Axes, row: int, strip: Layout, palette: Palette, *, letters_fit: bool) -> None:
    for layer, label in enumerate(strip.labels):
        style: Style = palette[label]
        block_cell(axes, layer, row, (0.94, 0.66), style)
        if letters_fit:
            box = {"facecolor": style.color, "edgecolor": "none", "pad": 0.6} if style.hatch else None
            axes.text(layer, row, style.tag, ha="center", va="center", fontsize=9, color=style.ink, bbox=box)
        if layer in strip.overruled:
            axes.plot(layer, row - 0.43, marker="v", markersize=4.5, color="#111111", clip_on=False)
    if strip.relative_cost is not None:
        share = f"{100 * strip.relative_cost:.0f} %"
        axes.text(1.01, row, share, transform=axes.get_yaxis_transform(), va="center", color=GREY, fontsize=10)


def _palette(run: Run, strips: list[Layout]) -> Palette:
    """The styles of what the strips show, in the order and shade of the whole run's palette."""
    shown = {label for strip in strips for label in strip.labels}
    return palette_of(run, shown).only(shown)


def _from_file(name: str, architecture: dict[str, Any], palette: Palette) -> Layout:
    labels = layer_labels(architecture)
    overruled = architecture.get("evidence", {}).get("overruled", [])
    layers = {entry["layer"] for entry in overruled if isinstance(entry, dict) and isinstance(entry.get("layer"), int)}
    pattern = architecture.get("pattern")
    return Layout(
        name, labels, pattern if isinstance(pattern, str) else "".join(palette[one].tag[0] for one in labels), layers
    )


def _from_pattern(name: str, pattern: str) -> Layout:
    try:
        flat = expand(pattern)
    except UserError:  # letters of blocks that are registered elsewhere
        flat = pattern
    blocks = letters()
    return Layout(name, [blocks.get(letter, f"block {letter}") for letter in flat], flat)


def _relative_cost(run: Run, layout: Layout) -> float | None:
    """FLOPs a token of the layers against interleaved of equal depth, at the run's widths; None where not known."""
    try:
        settings = _settings(run)
        length = int(run.setting("data.seq_len", settings.max_len))
        costs = {
            label: candidate_cost(parse_candidate(label, settings), settings, length)[1]
            for label in {*layout.labels, "self_attention", "feed_forward"}
        }
    except (UserError, TypeError, ValueError):
        return None
    pair = costs["self_attention"] + costs["feed_forward"]
    return sum(costs[label] for label in layout.labels) / (len(layout.labels) / 2 * pair)


def _settings(run: Run) -> ModelSettings:
    """The widths of the run's architectures, else of its configuration; the vocabulary costs no layer anything."""
    for architecture in run.architectures.values():
        return ModelSettings.from_mapping(architecture.get("model", {}))
    model = {
        key: value
        for key, value in run.setting("model", {}).items()
        if key not in ("task", "layers") and value is not None
    }
    return ModelSettings.from_mapping({"max_len": run.setting("data.seq_len", ModelSettings.max_len), **model})
