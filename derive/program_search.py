"""The program that explains a table best, found exactly.

    score(program) = SAMPLES * sum over seeds s of log P_s(layout) - length in nats
    log P_s(layout) = sum over layers l of the mean over steps of log p(kind of l), the best placement for a count, less
                      what placing it costs

Since no layer is held twice, a program's score is that of its rest plus what each clause gains over it, so the search
is for at most three clauses of disjoint layers with the largest sum of gains: branch and bound, where a clause is left
out when even the best kind in every other layer would not make up for it.
"""

from dataclasses import dataclass, replace

import numpy as np

from derive.clause_space import count_gains, count_spans, every_spans, every_sums
from derive.programs import MOST_CLAUSES, NAT, Clause, Program, clause_bits, rest_bits

# Layouts that each seed counts for when a program is picked. A seed's probabilities are more than one layout: at 1
# two layers at either end of a sandwich do not pay for the clause that tells of them (benchmarks/rules.py).
SAMPLES = 2
LEAST_GAIN = 1e-9  # nats: what is not better by more counts as equal, and the one found first stays
SINGLES = 12  # programs of one clause that are kept of each rest, as rivals


@dataclass(frozen=True)
class Found:
    """The best program and its score in nats; `others`: the best constant and the best single clauses of each rest."""

    program: Program
    score: float
    others: list[Program]


@dataclass(frozen=True)
class _Pieces:
    """Clauses of one rest that gain something, the best first: `order` [E] tells which of `clauses`, `gains` less their
    length, the kind each holds, the count of an order-free one, and the layers it takes [E, N]."""

    clauses: list[Clause]
    kinds: list[str]
    order: np.ndarray
    gains: np.ndarray
    held: np.ndarray
    number: np.ndarray
    takes: np.ndarray
    shortest: float  # nats of a clause of least length

    def clause(self, at: int) -> Clause:
        """The clause of that place in the order, with its kind and count."""
        return replace(
            self.clauses[int(self.order[at])], holds=self.kinds[int(self.held[at])], count=int(self.number[at])
        )


def search(logs: np.ndarray, kinds: list[str], default: str, weights: np.ndarray) -> list[Found]:
    """The best program for each weighting [W, S] of the seeds' log-probabilities [S, N, kinds].

    A weighting says how often each seed counts: all ones for the evidence as it is, other counts for draws of it.
    """
    weights = SAMPLES * weights
    counts = count_gains(logs, weights) if logs.shape[1] > 1 else ()
    return [
        _search_one(logs, kinds, default, weight, tuple(part[row] for part in counts))
        for row, weight in enumerate(weights)
    ]


def _search_one(
    logs: np.ndarray,
    kinds: list[str],
    default: str,
    weight: np.ndarray,
    counts: tuple[np.ndarray, ...],
) -> Found:
    layers = logs.shape[1]
    mean = np.tensordot(weight, logs, axes=1)  # [N, kinds], summed over seeds
    sums = every_sums(mean)
    base = mean.sum(axis=0) - NAT * np.array([rest_bits(kind == default, len(kinds)) + 1 for kind in kinds])
    pieces = [_pieces(layers, sums, rest, kinds, [part[rest] for part in counts]) for rest in range(len(kinds))]
    best, score = Program(layers, Clause("rest", kinds[int(base.argmax())])), float(base.max())
    others = [Program(layers, Clause("rest", kind)) for kind in kinds]
    # rests in the order of what their best single clause makes of them: a good program early prunes more
    firsts = [base[rest] + own.gains[:1].sum() for rest, own in enumerate(pieces)]
    for rest in sorted(range(len(kinds)), key=lambda rest: -firsts[rest]):
        own, holds = pieces[rest], Clause("rest", kinds[rest])
        others += [Program(layers, holds, (own.clause(at),)) for at in range(min(SINGLES, len(own.gains)))]
        most = np.tensordot(weight, logs.max(axis=2) - logs[:, :, rest], axes=1)  # [N], the most a layer can gain
        chosen, gain = _best_sum(own, most, score - float(base[rest]))
        if chosen:
            score = float(base[rest]) + gain
            clauses = sorted((own.clause(at) for at in chosen), key=lambda clause: (clause.start, clause.end))
            best = Program(layers, holds, tuple(clauses))
    return Found(best, score, others)


def _pieces(layers: int, sums: np.ndarray, rest: int, kinds: list[str], counts: list[np.ndarray]) -> _Pieces:
    """What gains over the rest alone; a clause that loses alone loses in every program, since gains only add up."""
    every, free = every_spans(layers), count_spans(layers)
    over = sums - sums[:, rest : rest + 1]
    held, gains = over.argmax(axis=1), over.max(axis=1) - NAT * every.bits
    number, takes, clauses = np.zeros_like(held), every.takes, every.clauses
    if counts:
        form = clause_bits(len(kinds), "count") - clause_bits(len(kinds))
        gains = np.concatenate([gains, counts[0] - NAT * (free.bits + form)])
        number, held = np.concatenate([number, counts[1]]), np.concatenate([held, counts[2]])
        takes, clauses = np.concatenate([takes, free.takes]), clauses + free.clauses
    gains = gains - NAT * clause_bits(len(kinds))
    order = np.argsort(-gains, kind="stable")
    order = order[gains[order] > LEAST_GAIN]
    shortest = NAT * (clause_bits(len(kinds)) + 2)
    return _Pieces(clauses, kinds, order, gains[order], held[order], number[order], takes[order], shortest)


def _best_sum(pieces: _Pieces, most: np.ndarray, floor: float) -> tuple[list[int], float]:
    """One to three pieces that take different layers, of the largest summed gain over `floor`; none where there are
    none.

    Pieces are tried in the order of their gains. A sum with some of them in it is at most what they gain and what the
    layers that they leave free could gain, less the length of a shortest clause.
    """
    best, chosen = floor + LEAST_GAIN, []
    total, own = float(most.sum()) - pieces.shortest, pieces.takes @ most
    kept = np.flatnonzero(pieces.gains + np.maximum(0, total - own) > best)
    gains, own, takes = pieces.gains[kept], own[kept], _packed(pieces.takes[kept])
    for first in range(len(kept)):
        if gains[first : first + MOST_CLAUSES].sum() <= best:
            break
        if gains[first] > best:
            best, chosen = float(gains[first]) + LEAST_GAIN, [first]
        behind = np.arange(first + 1, len(kept))
        bound = gains[first] + gains[behind] + np.maximum(0, total - own[first] - own[behind])
        free = behind[(bound > best) & ~(takes[behind] & takes[first]).any(axis=1)]
        two, pair = _best_two(gains, takes, free, best - float(gains[first]))
        if two:
            best, chosen = float(gains[first]) + pair, [first, *two]
    return [int(kept[at]) for at in chosen], best - LEAST_GAIN


def _best_two(gains: np.ndarray, takes: np.ndarray, free: np.ndarray, floor: float) -> tuple[list[int], float]:
    """One or two of `free` that take different layers, of the largest summed gain over `floor`; and floor or that
    gain."""
    chosen: list[int] = []
    own = gains[free]
    if own.size and own[0] > floor:
        chosen, floor = [int(free[0])], float(own[0]) + LEAST_GAIN
    for place in range(len(free) - 1):
        # those behind that would be enough, if they are disjoint
        until = place + 1 + int(np.searchsorted(-own[place + 1 :], own[place] - floor, side="left"))
        if until == place + 1:
            break
        apart = ~(takes[free[place + 1 : until]] & takes[free[place]]).any(axis=1)
        at = int(apart.argmax())
        if apart[at]:
            chosen, floor = [int(free[place]), int(free[place + 1 + at])], float(own[place] + own[place + 1 + at])
            floor += LEAST_GAIN
    return chosen, floor


def _packed(takes: np.ndarray) -> np.ndarray:
    """Layers [E, N] as bits of 64-bit words, [E, words]."""
    layers = takes.shape[1]
    padded = np.zeros((len(takes), -(-layers // 64) * 64), dtype=bool)
    padded[:, :layers] = takes
    return np.packbits(padded, axis=1).view(np.uint64)
