"""Which attention-like candidate wins, and whether another one takes over at some depth.

Arrays are [S, N, A]: seeds, layers, attention-like candidates. Both questions are tested against shuffled and random
tables.
"""

import numpy as np

from derive.change_point import LARGEST_CHANCE

SHUFFLES = 499
LEAST_GAIN = 0.1  # summed mass that a second kind must bring


def pieces(seeds: np.ndarray, rng: np.random.Generator) -> tuple[list[tuple[int, int, int]], float]:
    """(first layer, layer behind the last, kind) of one or two pieces of [S, N, A], and the chance to win by as much.

    One kind for all layers leads by chance either if kinds are exchanged within layers, or (taken five times) in random
    rows.
    """
    layers, curves = seeds.shape[1], seeds.mean(axis=0)
    gain, border, before, behind = _split(curves)
    if gain >= LEAST_GAIN and (chance := _split_chance(seeds, gain, rng)) <= LARGEST_CHANCE:
        return [(0, border, before), (border, layers, behind)], round(chance, 4)
    shuffled = rng.permuted(np.broadcast_to(seeds, (SHUFFLES, *seeds.shape)), axis=3).mean(axis=1)
    random = rng.dirichlet(np.ones(curves.shape[1]), size=(SHUFFLES, layers)) * curves.sum(axis=1)[:, None]
    sums = curves.sum(axis=0)
    by_order, by_size = (
        (1 + (_lead(null.sum(axis=1)) >= _lead(sums) - 1e-9).sum()) / (1 + SHUFFLES) for null in (shuffled, random)
    )
    return [(0, layers, int(sums.argmax()))], round(float(min(by_order, 5 * by_size)), 4)


def _split(curves: np.ndarray) -> tuple[float, int, int, int]:
    """Best border between two kinds over [N, A]: (mass gained over one kind for all, border, kind before, kind
    behind)."""
    sums = np.concatenate([np.zeros((1, curves.shape[1])), np.cumsum(curves, axis=0)])
    before, behind = sums[1:-1], sums[-1] - sums[1:-1]
    if not len(before):
        return 0.0, 0, 0, 0
    total = before.max(axis=1) + behind.max(axis=1)
    at = int(total.argmax())
    return float(total[at] - sums[-1].max()), at + 1, int(before[at].argmax()), int(behind[at].argmax())


def _split_chance(seeds: np.ndarray, gain: float, rng: np.random.Generator) -> float:
    """Probability that layers in random order, each seed for itself, gain as much from a border."""
    layers = seeds.shape[1]
    shuffles = (np.mean([seed[rng.permutation(layers)] for seed in seeds], axis=0) for _ in range(SHUFFLES))
    return (1 + sum(_split(curves)[0] >= gain - 1e-9 for curves in shuffles)) / (1 + SHUFFLES)


def _lead(sums: np.ndarray) -> np.ndarray:
    """By how much the largest of the last axis leads the second."""
    ordered = np.sort(sums, axis=-1)
    return ordered[..., -1] - ordered[..., -2]
