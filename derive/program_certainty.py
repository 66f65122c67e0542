"""How sure a program is: whether it beats saying nothing and its rivals when seeds and recorded steps are drawn anew.

A draw takes as many seeds as there are, with replacement, and one recorded step of each. Its best program is looked for
among a shortlist only: the best program of all seeds and of each seed alone, those that differ from these in one clause
by a border, period, offset, count or kind or by its absence, all constants, and the best single clauses. Draws are
mixtures of the seeds, so what wins one wins a seed, or all of them together, or is close to such a program; the tests
hold this against the exact search in each draw.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from derive.kind_table import Table
from derive.program_search import SAMPLES, Found, search
from derive.programs import NAT, Clause, Program, place_bits

DRAWS = 400
ENOUGH = 0.95  # of the draws
LEAST_MARGIN = math.log(20)  # nats over a table of 1 / C throughout: at most one random table in twenty has that


@dataclass(frozen=True)
class Certainty:
    """The best program, and what the draws say of it.

    `margin`: nats, each seed counted once, by which it beats a table that knows nothing, its length paid. `supported`:
    it beats that and the best constant. `returns`: for each clause the share of draws whose best program has one like
    it. `picks`: the best program of each draw, by place in `shortlist`; `weights` [draws, steps of all windows]: how
    often it has each recorded step.
    """

    program: Program
    bits: float
    score: float
    nothing: Program
    margin: float
    beats_noise: float
    beats_nothing: float
    supported: bool
    returns: list[float]
    shortlist: list[Program]
    picks: np.ndarray
    weights: np.ndarray

    def clause_supported(self, at: int) -> bool:
        """Whether the program is supported and the clause, give or take a layer or period, returns in 95 % of draws."""
        return self.supported and self.returns[at] >= ENOUGH

    def like(self, clause: Clause) -> list[Clause]:
        """The clause like this one in each draw's best program that has one."""
        found = [_alike_in(clause, self.program.layers, program) for program in self.shortlist]
        return [one for one in (found[pick] for pick in self.picks) if one is not None]


def certainty(table: Table, seed: int = 0) -> Certainty:
    """The best program of the selected tables, and its certainty over seeds and recorded steps. Equal input and seed
    give equal output."""
    kinds, logs, seeds = table.kinds, table.logs(), len(table.samples)
    best = search(logs, kinds, table.default, np.ones((1, seeds)))[0]
    program = best.program
    nats = NAT * program.bits(kinds, table.default)
    fitted = float(fits([program], logs, kinds).sum())
    margin = fitted - nats + seeds * table.layers * math.log(len(table.labels))
    alone = search(logs, kinds, table.default, seeds * np.eye(seeds)) if seeds > 1 and margin > LEAST_MARGIN else []
    listed = _shortlist(best, alone, kinds)
    weights, rows = _draws(table, np.random.default_rng(seed))
    explained = weights @ fits(listed, rows, kinds).T  # [draws, programs], each seed counted once
    lengths = NAT * np.array([one.bits(kinds, table.default) for one in listed])
    picked = SAMPLES * explained - lengths
    constants = [at for at, one in enumerate(listed) if not one.clauses]
    over_noise = explained[:, 0] - nats > -seeds * table.layers * math.log(len(table.labels))
    over_nothing = picked[:, 0] >= picked[:, constants].max(axis=1)
    beats = float(over_noise.mean()), float(over_nothing.mean())
    picks = picked.argmax(axis=1)
    full = SAMPLES * fits([listed[at] for at in constants], logs, kinds).sum(axis=1) - lengths[constants]
    return Certainty(
        program,
        nats / NAT,
        SAMPLES * fitted - nats,
        listed[constants[int(full.argmax())]],
        margin,
        *beats,
        margin > LEAST_MARGIN and min(beats) >= ENOUGH and table.layers > 1,
        [_returns(clause, table.layers, listed, picks) for clause in program.clauses],
        listed,
        picks,
        weights,
    )


def fits(programs: list[Program], rows: np.ndarray, kinds: list[str]) -> np.ndarray:
    """Log-probability of each program's layout in each of the tables [R, N, kinds], [programs, R] in nats.

    A count has its best placement in each table and pays for it.
    """
    place = {kind: at for at, kind in enumerate(kinds)}
    layers = np.arange(rows.shape[1])
    found = np.empty((len(programs), len(rows)))
    for at, program in enumerate(programs):
        rest = place[program.rest.holds]
        held = np.full(rows.shape[1], rest)
        counts = [clause for clause in program.clauses if clause.form == "count"]
        for clause in program.clauses:
            if clause.form == "every":
                held[clause.start : clause.end : clause.period] = place[clause.holds]
        found[at] = rows[:, layers, held].sum(axis=1)
        for clause in counts:
            span = rows[:, clause.start : clause.end]
            over = np.sort(span[:, :, rest] - span[:, :, place[clause.holds]], axis=1)
            found[at] -= over[:, : clause.count].sum(axis=1) + NAT * place_bits(clause.count, span.shape[1])
    return found


def alike(one: Clause, other: Clause, layers: int) -> bool:
    """Whether two clauses say the same but for a layer or period at the borders, or one in eight of a count."""
    if (one.form, one.holds, one.period) != (other.form, other.holds, other.period):
        return False
    slack = max(one.period, layers // 16, 1)
    apart = abs(one.start - other.start), abs(one.end - other.end)
    in_step = one.form != "every" or apart[0] % one.period == 0
    return max(apart) <= slack and in_step and abs(one.count - other.count) <= max(1, one.count // 8)


def _draws(table: Table, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """How often each draw has each recorded step [draws, R], and the steps' log-probabilities [R, N, kinds]."""
    windows = table.windows()
    first = np.cumsum([0, *(len(window) for window in windows)])
    seeds = rng.integers(len(windows), size=(DRAWS, len(windows)))
    sizes = np.array([len(window) for window in windows])
    at = first[seeds] + (rng.random(seeds.shape) * sizes[seeds]).astype(int)
    weights = np.zeros((DRAWS, first[-1]))
    np.add.at(weights, (np.arange(DRAWS)[:, None], at), 1.0)
    return weights, np.concatenate([table.log_kinds(window) for window in windows])


def _shortlist(best: Found, alone: list[Found], kinds: list[str]) -> list[Program]:
    """Programs that draws choose from, each once, the best one first."""
    found = [best.program]
    for program in [best.program, *(one.program for one in alone)]:
        found += [program, *_neighbours(program, kinds)]
    found += [program for one in [best, *alone] for program in one.others]
    return list(dict.fromkeys(found))


def _neighbours(program: Program, kinds: list[str]) -> Iterator[Program]:
    """Programs that differ in one clause, or have one less."""
    for at, clause in enumerate(program.clauses):
        others = program.clauses[:at] + program.clauses[at + 1 :]
        yield replace(program, clauses=others)
        for changed in _changed(clause, program.layers, kinds):
            taken = {layer for other in others for layer in other.span()}
            if changed.holds != program.rest.holds and taken.isdisjoint(changed.span()):
                clauses = sorted((*others, changed), key=lambda one: (one.start, one.end))
                yield replace(program, clauses=tuple(clauses))


def _changed(clause: Clause, layers: int, kinds: list[str]) -> Iterator[Clause]:
    yield from (replace(clause, holds=kind) for kind in kinds if kind != clause.holds)
    moves = sorted({-clause.period, -2, -1, 1, 2, clause.period})
    for move in moves:
        shifted = [(clause.start + move, clause.end), (clause.start, clause.end + move)]
        shifted += [(clause.start + move, clause.end + move), (clause.start + move, layers)]
        for start, end in shifted:
            if clause.form == "count":
                if 0 <= start < end <= layers and 0 < clause.count < end - start:
                    yield replace(clause, start=start, end=end)
            else:
                yield from _whole(clause, start, end, clause.period, layers=layers)
        if clause.form == "count" and 0 < clause.count + move < clause.end - clause.start:
            yield replace(clause, count=clause.count + move)
    if clause.form == "every":
        for period in (clause.period - 1, clause.period + 1):
            yield from _whole(clause, clause.start, clause.end, period, layers=layers)


def _whole(clause: Clause, start: int, end: int, period: int, *, layers: int) -> Iterator[Clause]:
    """The clause with these borders, the end moved to whole periods; nothing where that is no clause."""
    if period < 1 or not 0 <= start < end:
        return
    end = min(layers, start - (start - end) // period * period)
    if start < end and (period == 1 or end - start > period):
        yield replace(clause, start=start, end=end, period=period)


def _alike_in(clause: Clause, layers: int, program: Program) -> Clause | None:
    return next((other for other in program.clauses if alike(clause, other, layers)), None)


def _returns(clause: Clause, layers: int, listed: list[Program], picks: np.ndarray) -> float:
    """The share of draws whose best program has a clause like this one."""
    has = np.array([_alike_in(clause, layers, program) is not None for program in listed])
    return float(has[picks].mean())
