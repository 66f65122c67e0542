"""Where along the depth attention pays: a region found by least squares, tested by permutation, with a bootstrap
interval.

The model of a curve over depth has two levels, one inside a region [start, end) and one outside it. The region may
touch the first layer (early), the last (late), neither (middle), or leave out a middle piece (ends). N layers, S seeds.
"""

from dataclasses import dataclass

import numpy as np

GRID = 48  # deeper networks are searched at that many borders
PERMUTATIONS = 1999
LARGEST_CHANCE = 0.05  # that shuffled layers look as orderly as these
LEAST_VARIANCE = 1e-4  # of the residuals: curves cleaner than that are equally clean
KINDS = ("early", "late", "middle", "ends")
BORDERS = {"early": 1, "late": 1, "middle": 2, "ends": 2}


@dataclass(frozen=True)
class Region:
    """Layers [start, end) of one level (for `ends`: those left out), with the levels inside and outside of it."""

    kind: str
    start: int
    end: int
    inside: float
    outside: float


def intervals(layers: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of every region of a kind that leaves out at least one layer."""
    borders = np.unique(np.linspace(0, layers, min(layers, GRID) + 1).round().astype(int))
    start, end = (grid.ravel() for grid in np.meshgrid(borders, borders, indexing="ij"))
    chosen = {
        "early": (start == 0) & (end < layers),
        "late": (start > 0) & (end == layers),
        "middle": (start > 0) & (end < layers),
        "ends": (start > 0) & (end < layers),
    }[kind] & (start < end)
    return start[chosen], end[chosen]


def explained(curves: np.ndarray, kind: str) -> np.ndarray:
    """Sum of squares that each region of a kind explains, [rows of `curves`, regions]; 0 where the step goes the other
    way."""
    layers = curves.shape[-1]
    start, end = intervals(layers, kind)
    sums = np.concatenate([np.zeros((len(curves), 1)), np.cumsum(curves, axis=1)], axis=1)
    inner, size = sums[:, end] - sums[:, start], end - start
    step = inner / size - (sums[:, -1:] - inner) / (layers - size)
    step = -step if kind == "ends" else step
    return np.where(step > 0, size * (layers - size) / layers * step**2, 0.0)


def fit(curve: np.ndarray) -> Region | None:
    """The region, over all kinds, of least Bayesian information criterion; None for fewer than two layers or no
    step."""
    layers = len(curve)
    best: tuple[float, Region] | None = None
    total = float(((curve - curve.mean()) ** 2).sum())
    for kind in KINDS:
        gains = explained(curve[None], kind)[0]
        if not gains.size or gains.max() <= 1e-12:
            continue
        at = int(gains.argmax())
        residual = max((total - gains[at]) / layers, LEAST_VARIANCE)
        criterion = layers * np.log(residual) + BORDERS[kind] * np.log(layers)
        if best is None or criterion < best[0] - 1e-9:
            best = (criterion, _region(curve, kind, *(int(edge[at]) for edge in intervals(layers, kind))))
    return best[1] if best else None


def chance(curves: np.ndarray, rng: np.random.Generator) -> float:
    """Probability that layers in random order, each seed [S, N] for itself, show a region as clear as the mean curve's.

    The statistic is the smallest of the permutation probabilities of each kind of region and of a trend, itself set
    against its permutations.
    """
    mean = curves.mean(axis=0)
    shuffled = np.mean([rng.permuted(np.tile(curve, (PERMUTATIONS, 1)), axis=1) for curve in curves], axis=0)
    rows = np.concatenate([mean[None], shuffled])
    smallest = np.ones(len(rows))
    for kind in ("early", "late", "middle"):
        if intervals(curves.shape[1], kind)[0].size:
            smallest = np.minimum(smallest, _tail(explained(rows, kind).max(axis=1)))
    # sees blocks that lie early but not side by side
    trend = rows @ (np.arange(curves.shape[1]) - (curves.shape[1] - 1) / 2)
    smallest = np.minimum(smallest, _tail(np.abs(trend)))
    return float(np.mean(smallest <= smallest[0] + 1e-12))


def extend(curves: np.ndarray, region: Region, rng: np.random.Generator) -> Region:
    """An early or late region, grown over a further step down where the layers [S, N] outside still expect a block or
    more.

    So a mass that falls 0.4, 0.2, 0.1 has its region end at the last step. The grown part must pass the test of
    `chance`.
    """
    mean, layers = curves.mean(axis=0), curves.shape[1]
    if region.kind == "late":
        mirrored = extend(curves[:, ::-1], _region(mean[::-1], "early", 0, layers - region.start), rng)
        return _region(mean, "late", layers - mirrored.end, layers)
    rest = curves[:, region.end :]
    if region.kind != "early" or rest.mean(axis=0).sum() < 1:
        return region
    step = fit(rest.mean(axis=0))
    if step is None or step.kind != "early" or step.outside > 0.6 * step.inside or chance(rest, rng) > LARGEST_CHANCE:
        return region
    return extend(curves, _region(mean, "early", 0, region.end + step.end), rng)


def borders_interval(
    curves: np.ndarray, region: Region, rng: np.random.Generator, *, core: Region
) -> dict[str, list[int]]:
    """95 % intervals of start and end, refitted to `curves` [draws, N] with the residuals of the fit drawn anew.

    Of a region grown from `core`, the border that moved is refitted to the layers outside of `core`.
    """
    offset, layers = 0, curves.shape[1]
    if region != core:
        offset, layers = (core.end, layers) if region.kind == "early" else (0, core.start)
    part = curves[:, offset:layers]
    starts, ends = intervals(layers - offset, region.kind)
    inside = np.zeros(layers - offset, dtype=bool)
    inside[max(0, region.start - offset) : region.end - offset] = True
    drawn = part.copy()
    for side in (inside, ~inside):
        level = part[:, side].mean(axis=1, keepdims=True)
        picked = rng.integers(side.sum(), size=(len(part), side.sum()))
        drawn[:, side] = level + np.take_along_axis(part[:, side] - level, picked, axis=1)
    at = explained(drawn, region.kind).argmax(axis=1)
    start, end = (
        [offset + int(np.quantile(edge[at], q, method="nearest")) for q in (0.025, 0.975)] for edge in (starts, ends)
    )
    if region.kind == "early":
        return {"start": [0, 0], "end": end}
    return {"start": start, "end": [curves.shape[1]] * 2 if region.kind == "late" else end}


def _tail(values: np.ndarray) -> np.ndarray:
    """For each value, the share of all that are at least as large (up to rounding)."""
    order = np.sort(values)
    return 1 - np.searchsorted(order, values - 1e-9 * (1 + np.abs(values)), side="left") / len(values)


def _region(curve: np.ndarray, kind: str, start: int, end: int) -> Region:
    inside = np.zeros(len(curve), dtype=bool)
    inside[start:end] = True
    return Region(kind, start, end, float(curve[inside].mean()), float(curve[~inside].mean()))
