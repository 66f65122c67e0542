"""Whether seeds agree, asked twice: layer by layer, and on how many layers of each kind whatever their order."""

from itertools import combinations
from typing import Any

import numpy as np


def agreement(tables: np.ndarray) -> dict[str, Any]:
    """Agreement of the likeliest candidates of tables [S, N, C]: {`seeds`, `by_layer`, `by_composition`, `layers`}.

    Both shares are means over pairs of seeds, from 0 to 1, and null for one seed; `layers` counts those in which all
    seeds agree.
    """
    winners = tables.argmax(axis=2)  # [S, N]
    several = len(winners) > 1
    return {
        "seeds": len(winners),
        "by_layer": round(by_layer(winners), 4) if several else None,
        "by_composition": round(by_composition(winners, tables.shape[2]), 4) if several else None,
        "layers": int((winners == winners[0]).all(axis=0).sum()) if several else None,
    }


def by_layer(winners: np.ndarray) -> float:
    """Share of layers in which two seeds have the same winner, mean over pairs of [S, N] winners."""
    return float(np.mean([(one == other).mean() for one, other in combinations(winners, 2)]))


def by_composition(winners: np.ndarray, candidates: int) -> float:
    """Share of layers that two seeds would have in common if each could reorder its own, mean over pairs of [S, N]
    winners."""
    counts = [np.bincount(row, minlength=candidates) for row in winners]
    shared = [np.minimum(one, other).sum() for one, other in combinations(counts, 2)]
    return float(np.mean(shared) / winners.shape[1])
