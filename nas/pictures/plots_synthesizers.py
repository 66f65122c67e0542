"""Pictures of what attention and synthesizers learned, as in Tay et al. 2020: histograms of weights, and attention
maps."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm

from derive.strict_json import read_json
from nas.pictures.palette import shorten
from nas.pictures.plots_base import NothingToDraw, Target, palette_of, panels, thin
from nas.results.run_files import Run
from nas.results.run_readers import layer_labels
from supernet.blocks import BLOCKS
from supernet.settings import TASKS

LAYERS_SHOWN = 5
VALUES_SHOWN = 50_000  # of one layer's weights, evenly picked; more do not change a histogram
POSITIONS_SHOWN = 48  # of an attention map's rows and columns
NO_WEIGHTS = (
    "This run has no checkpoint.pt and no retrained network with a synthesizer, so there are no weights to show."
)


@dataclass(frozen=True)
class LogitWeights:
    """The weights behind one block's attention logits: flat, and the corner of head 0's map [T, T] where it needs no
    input."""

    label: str
    layer: int
    values: np.ndarray
    map: np.ndarray | None


def synthesizers_size(run: Run) -> tuple[float, float]:
    """Width and height in inches."""
    kinds = {one.label for one in _if_readable(run)}
    return 11.0, 1.4 + 1.9 * -(-max(len(kinds), 1) // 3)


def draw_synthesizers(run: Run, target: Target) -> None:
    """Histogram of each kind's logit weights, one line for some of the layers, from light (first) to dark (last)."""
    weights = _need(run)
    palette = palette_of(run, sorted({one.label for one in weights}))
    labels = [label for label in palette.labels if label in {one.label for one in weights}]
    columns, rows = min(3, len(labels)), -(-len(labels) // 3)
    grid = [axes for row in panels(target, [1.0] * rows, columns) for axes in row]
    shades = matplotlib.colormaps["viridis_r"]
    layers = sorted({one.layer for one in weights})
    for axes, label in zip(grid[: len(labels)], labels, strict=True):
        own = [one for one in weights if one.label == label]
        edge = max(float(np.quantile(np.abs(one.values), 0.999)) for one in own) or 1.0
        for one in own:
            density, edges = np.histogram(one.values, bins=60, range=(-edge, edge), density=True)
            place = layers.index(one.layer) / max(1, len(layers) - 1)
            axes.stairs(density, edges, color=shades(0.1 + 0.9 * place), linewidth=1.4, label=f"layer {one.layer}")
        deviation = np.mean([one.values.std() for one in own])
        axes.set_title(f"{palette[label].tag}  {shorten(label, 30)}, sd {deviation:.2g}", fontsize=10)
        axes.set_yticks([])
        axes.locator_params(axis="x", nbins=4)
    for axes in grid[len(labels) :]:
        axes.set_axis_off()
    grid[0].set_ylabel("density")
    for axes in grid[max(0, len(labels) - columns) : len(labels)]:
        axes.set_xlabel("weight")
    handles = {text: handle for axes in grid for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    order = sorted(handles, key=lambda text: int(text.split()[1]))
    place_legend = grid[0].legend if isinstance(target, Axes) else target.legend
    where = (
        {"loc": "upper right"} if isinstance(target, Axes) else {"loc": "outside lower center", "ncols": LAYERS_SHOWN}
    )
    place_legend(handles=[handles[text] for text in order], labels=order, **where)


def attention_maps_size(run: Run) -> tuple[float, float]:
    """Width and height in inches."""
    maps = [one for one in _if_readable(run) if one.map is not None]
    return 2.9 + 2.0 * max(len({one.layer for one in maps}), 1), 1.2 + 2.1 * max(len({one.label for one in maps}), 1)


def draw_attention_maps(run: Run, target: Target) -> None:
    """Attention maps that need no input, head 0, against plain averaging over the keys that a query may see."""
    maps = [one for one in _need(run) if one.map is not None]
    if not maps:
        raise NothingToDraw(
            "No candidate of this run has an attention map of its own: all of them depend on the input."
        )
    palette = palette_of(run, sorted({one.label for one in maps}))
    labels = [label for label in palette.labels if label in {one.label for one in maps}]
    layers = sorted({one.layer for one in maps})
    grid = panels(target, [1.0] * len(labels), len(layers))
    causal = TASKS.get(run.setting("model.task", "causal_lm"), False)
    image = None
    for row, label in zip(grid, labels, strict=True):
        for axes, layer in zip(row, layers, strict=True):
            axes.set_xticks([])
            axes.set_yticks([])
            found = next((one for one in maps if (one.label, one.layer) == (label, layer)), None)
            if found is None:
                axes.set_axis_off()
                continue
            image = _map(axes, found.map, causal=causal)
            axes.set_title(f"{palette[label].tag}  layer {layer}", fontsize=10)
        row[0].set_ylabel(shorten(label, 24) + "\nquery")
    for axes in grid[-1]:
        axes.set_xlabel("key")
    bar = grid[0][0].figure.colorbar(
        image, ax=[axes for row in grid for axes in row], fraction=0.04, pad=0.02, ticks=[-2, -1, 0, 1, 2]
    )
    bar.ax.set_yticklabels(["1/4", "1/2", "as plain\naveraging", "2 times", "4 times"])
    bar.outline.set_visible(False)


def _map(axes: Axes, logits: np.ndarray, *, causal: bool) -> object:
    """log2 of softmax(logits [T, T]) times the number of keys that the query may see; hidden keys stay white."""
    part = logits.copy()
    hidden = np.triu(np.ones_like(part, bool), 1) if causal else np.zeros_like(part, bool)
    part[hidden] = -np.inf
    share = np.exp(part - part.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        relative = np.log2(share * (~hidden).sum(axis=1, keepdims=True))
    return axes.imshow(
        np.ma.masked_array(relative, hidden), cmap="PuOr", norm=TwoSlopeNorm(0, -2, 2), interpolation="nearest"
    )


def _need(run: Run) -> list[LogitWeights]:
    weights = _weights_or_none(run)
    if not weights:
        raise NothingToDraw(NO_WEIGHTS)
    return weights


def _if_readable(run: Run) -> list[LogitWeights]:
    try:
        return _weights_or_none(run)
    except NothingToDraw:
        return []


def _weights_or_none(run: Run) -> list[LogitWeights]:
    """From the supernet's checkpoint (of the first seed), else from a retrained network that has a synthesizer."""
    for home in (run, *run.seeds.values()):
        path = home.folder / "checkpoint.pt"
        if path.exists() and home.search is not None:
            return _supernet_weights(path, path.stat().st_mtime_ns, tuple(home.search.candidates))
    for path in sorted(run.folder.glob("retrain/*/seed-*/model.safetensors")):
        if (path.parent / "architecture.json").exists():
            labels = layer_labels(read_json(path.parent / "architecture.json"))
            if any(label.split("[")[0].endswith("_synthesizer") for label in labels):
                return _network_weights(path, path.stat().st_mtime_ns, tuple(labels))
    return []


@lru_cache(maxsize=1)  # two pictures and their sizes ask for the same file
def _supernet_weights(path: Path, modified: int, labels: tuple[str, ...]) -> list[LogitWeights]:
    import torch  # only a checkpoint needs it

    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)["model"]
    except (RuntimeError, OSError, KeyError, EOFError, ValueError) as error:
        raise NothingToDraw(f"{path.name} cannot be read: {str(error).splitlines()[0]}") from None
    return list(_collect(list(state), lambda name: state[name].float().numpy(), _candidates_of(list(state), labels)))


@lru_cache(maxsize=1)
def _network_weights(path: Path, modified: int, labels: tuple[str, ...]) -> list[LogitWeights]:
    from safetensors import SafetensorError, safe_open

    prefixes = {f"layers.{n}.block.logits.": (label, n) for n, label in enumerate(labels)}
    try:
        with safe_open(path, framework="np") as file:
            return list(_collect(list(file.keys()), file.get_tensor, prefixes))
    except (SafetensorError, OSError) as error:
        raise NothingToDraw(f"{path.name} cannot be read: {error}") from None


def _candidates_of(names: list[str], labels: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Prefix of the logits' tensors -> (label, layer), for every layer and candidate of a supernet."""
    layers = {int(name.split(".")[1]) for name in names if name.startswith("layers.")}
    return {f"layers.{n}.candidates.{k}.block.logits.": (label, n) for n in layers for k, label in enumerate(labels)}


def _collect(
    names: list[str], read: Callable[[str], np.ndarray], prefixes: dict[str, tuple[str, int]]
) -> Iterator[LogitWeights]:
    """The weights of attention-like blocks, of at most LAYERS_SHOWN layers of each kind."""
    by_label: dict[str, list[tuple[int, str]]] = {}
    for prefix, (label, layer) in prefixes.items():
        known = BLOCKS.get(label.split("[")[0])
        if known is not None and known.attention_like and any(name.startswith(prefix) for name in names):
            by_label.setdefault(label, []).append((layer, prefix))
    for label, places in by_label.items():
        places.sort()
        for index in thin(len(places), LAYERS_SHOWN):
            layer, prefix = places[index]
            tensors = {name.removeprefix(prefix): read(name) for name in names if name.startswith(prefix)}
            full = tensors.get("map")
            if full is None and {"left", "right"} <= set(tensors):
                full = tensors["left"] @ tensors["right"].swapaxes(-1, -2)
            chosen = (
                [full]
                if full is not None
                else [value for name, value in tensors.items() if not name.endswith(("bias", "mixing"))]
            )
            flat = np.concatenate([value.ravel() for value in chosen]).astype(np.float64)
            if np.isfinite(flat).all() and flat.size:
                corner = (
                    None
                    if full is None
                    else full[0, :POSITIONS_SHOWN, full.shape[2] - full.shape[1] :][:, :POSITIONS_SHOWN]
                )
                picked = flat[:: max(1, flat.size // VALUES_SHOWN)]
                yield LogitWeights(label, layer, picked, None if corner is None else corner.astype(np.float64))
