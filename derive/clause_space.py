"""All clauses of a depth, with what they gain over a rest: the pieces that the search for a program puts together.

N layers, S seeds, kinds as in `kind_table`, W weightings of the seeds searched at once. Gains are in nats.
"""

import functools
from dataclasses import dataclass

import numpy as np

from derive.programs import NAT, Clause, count_bits, end_bits, period_bits, place_bits, start_bits

GRID = 64  # deeper networks are searched at that many borders
LONGEST_PERIOD = 16  # of networks deeper than GRID
COUNT_GRID = 12  # borders of counts in networks deeper than 2 * GRID


@dataclass(frozen=True)
class Spans:
    """Clauses without their kind, E of them: bare ones of kind "", bits without the kind's, and the layers that each
    takes [E, N]."""

    clauses: list[Clause]
    bits: np.ndarray
    takes: np.ndarray


@functools.lru_cache(maxsize=8)
def every_spans(layers: int) -> Spans:
    """All clauses `every p-th layer from a to b`: of those that hold the same layers the one of whole periods."""
    starts = _borders(layers, GRID)
    periods = range(1, max(2, layers) if layers <= GRID else LONGEST_PERIOD + 1)
    found = []
    for period in periods:
        # offsets within the first period are all looked at, however deep
        for start in sorted({*starts, *range(min(period, layers))} - {layers}):
            ends = sorted({start - (start - border) // period * period for border in starts if border > start})
            for end in sorted({min(end, layers) for end in ends}):
                if period == 1 or end - start > period:  # one layer alone is a region
                    found.append(Clause("every", "", start, end, period))
    bits = [period_bits(c.period) + start_bits(c.start, layers) + end_bits(c, layers) for c in found]
    return Spans(found, np.array(bits), _takes(found, layers))


@functools.lru_cache(maxsize=8)
def count_spans(layers: int) -> Spans:
    """All spans of two or more layers that a count may have; bits without the count's places."""
    borders = _borders(layers, layers if layers <= 2 * GRID else COUNT_GRID)
    found = [
        Clause("count", "", start, end) for start in borders[:-1] for end in borders if end - start > 1
    ]  # counts themselves are filled in by the search
    bits = [start_bits(c.start, layers) + end_bits(c, layers) + count_bits(c.end - c.start) for c in found]
    return Spans(found, np.array(bits), _takes(found, layers))


def every_sums(logs: np.ndarray) -> np.ndarray:
    """Summed log-probability of each kind over each `every` clause's layers, [E, kinds], of logs [N, kinds]."""
    layers = len(logs)
    spans = every_spans(layers)
    sums = np.empty((len(spans.clauses), logs.shape[1]))
    period, first, last = _strides(layers)
    for step in np.unique(period):
        # running sums at that stride, with `step` rows of nothing in front
        padded = np.zeros((step + layers, logs.shape[1]))
        for offset in range(step):
            padded[step + offset :: step] = np.cumsum(logs[offset::step], axis=0)
        own = period == step
        sums[own] = padded[step + last[own]] - padded[first[own]]
    return sums


def count_gains(logs: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each weighting [W, S] of the seeds' logs [S, N, kinds], rest and span the best count: what it gains over the
    rest, places paid, bits but not: [W, rests, spans]; how many; and of which kind.

    Each seed places the count's layers where its own table likes them best and pays for the choice.
    """
    spans = count_spans(logs.shape[1])
    kinds = logs.shape[2]
    shape = (len(weights), kinds, len(spans.clauses))
    gains, counts, held = np.full(shape, -np.inf), np.zeros(shape, dtype=int), np.zeros(shape, dtype=int)
    over = (logs[:, :, None, :] - logs[:, :, :, None]).transpose(2, 0, 3, 1)  # [rests, S, kinds, N]
    for at, clause in enumerate(spans.clauses):
        size = clause.end - clause.start
        best = -np.sort(-over[..., clause.start : clause.end], axis=-1)
        sums = np.cumsum(best[..., :-1], axis=-1)  # of the best 1 to size - 1 layers
        paid = NAT * np.array([place_bits(count, size) for count in range(1, size)])
        total = np.tensordot(weights, sums, axes=(1, 1)) - weights.sum(axis=1)[:, None, None, None] * paid
        flat = total.reshape(len(weights), kinds, -1)  # [W, rests, kinds * (size - 1)]
        chosen = flat.argmax(axis=2)
        gains[:, :, at] = np.take_along_axis(flat, chosen[..., None], axis=2)[..., 0]
        held[:, :, at], counts[:, :, at] = chosen // (size - 1), chosen % (size - 1) + 1
    return gains, counts, held


@functools.lru_cache(maxsize=8)
def _strides(layers: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Period, first and last layer of each `every` clause."""
    rows = [(c.period, c.start, c.span()[-1]) for c in every_spans(layers).clauses]
    period, first, last = np.array(rows).T
    return period, first, last


def _borders(layers: int, grid: int) -> list[int]:
    return [int(b) for b in np.unique(np.linspace(0, layers, min(layers, grid) + 1).round().astype(int))]


def _takes(clauses: list[Clause], layers: int) -> np.ndarray:
    takes = np.zeros((len(clauses), layers), dtype=bool)
    for row, clause in enumerate(clauses):
        takes[row, clause.start : clause.end : clause.period] = True
    return takes
