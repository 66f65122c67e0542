"""A program held against the table it was read from: where its layers lie, what it contradicts, how much it keeps.

N layers, C candidates, S seeds. Everything is read off the selected table, the one that pictures draw.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from derive.kind_table import Table
from derive.programs import ATTENTION, Clause, Program

CERTAIN = 0.9  # probability in all seeds from which a layer's winner is not contradicted without a word


@dataclass(frozen=True)
class Figures:
    """What the paper's rules say of a program: attention blocks, the layers [start, end) that they lie in and where
    that is, their kinds in the order of depth, and layers of identity.

    `step`: the largest period of attention; a region reaches a border that is less than a step away.
    """

    count: int
    start: int
    end: int
    where: str
    kinds: tuple[str, ...]
    idle: int
    step: int

    def near(self, other: "Figures", layers: int) -> bool:
        """Whether two programs put attention into the same region, give or take a step or a sixteenth of the depth."""
        slack = max(self.step, layers // 16, 1)
        return (
            self.where == other.where and abs(self.start - other.start) <= slack and abs(self.end - other.end) <= slack
        )


def figures(program: Program, table: Table) -> Figures:
    """The figures of a program, bare or placed; an order-free count lies in all layers of its span."""
    mixes = {label for label, yes in zip(table.labels, table.attention, strict=True) if yes} | {ATTENTION}
    labels, holders = program.labels(), program.holders()
    held = [layer for layer, label in enumerate(labels) if label in mixes]
    idle = sum(label.split("[")[0] == "identity" for label in labels)
    if not held:
        return Figures(0, 0, 0, "nowhere", (), idle, 1)
    own = [holders[layer] for layer in held]
    step = max(clause.period for clause in own)
    spans = [range(clause.start, clause.end) for clause in own if clause.form == "count"]
    places = sorted({*held, *(layer for span in spans for layer in span)})
    start = 0 if places[0] < step else places[0]
    end = program.layers if program.layers - 1 - places[-1] < step else places[-1] + 1
    gap = max((after - before for before, after in pairwise(places)), default=1)
    kinds = tuple(dict.fromkeys(clause.holds for clause in own))
    where = _where(start, end, program.layers, parted=gap > 2 * step and gap > program.layers / 4)
    return Figures(len(held), start, end, where, kinds, idle, step)


def placed(program: Program, table: Table) -> Program:
    """The program with the places of its counts, the likeliest under the table, and the blocks where it holds
    `attention`."""
    mean = table.mean()
    logs = dict(zip(table.kinds, table.logs().sum(axis=0).T, strict=True))  # kind -> [N]
    mixing = np.flatnonzero(table.attention)

    def filled(clause: Clause, held: tuple[int, ...]) -> Clause:
        if clause.holds != ATTENTION:
            return clause
        if not table.grouped:  # a user's block of that name
            return replace(clause, blocks=(ATTENTION,) * len(held))
        blocks = [table.labels[mixing[int(mean[layer, mixing].argmax())]] for layer in held]
        return replace(clause, blocks=tuple(blocks))

    clauses = []
    for clause in program.clauses:
        if clause.form == "count":
            over = logs[clause.holds] - logs[program.rest.holds]
            best = sorted(range(clause.start, clause.end), key=lambda layer: (-over[layer], layer))
            clause = replace(clause, at=tuple(sorted(best[: clause.count])))
        clauses.append(filled(clause, clause.held()))
    return Program(program.layers, filled(program.rest, tuple(range(program.layers))), tuple(clauses))


def contradictions(program: Program, table: Table) -> list[dict[str, Any]]:
    """Every layer where a placed program holds other than the likeliest candidate: both labels and probabilities, the
    nats that it costs, and whether the winner was certain: the same one, over CERTAIN, in all seeds."""
    mean, seeds = table.mean(), table.selected()
    logs = table.log_kinds(mean)
    found = []
    for layer, label in enumerate(program.labels()):
        best = int(mean[layer].argmax())
        at = table.labels.index(label)
        if at == best:
            continue
        certain = bool((seeds[:, layer, best] > CERTAIN).all())
        found.append(
            {
                "layer": layer,
                "preferred": table.labels[best],
                "chosen": label,
                "preferred_probability": round(float(mean[layer, best]), 6),
                "chosen_probability": round(float(mean[layer, at]), 6),
                "nats": round(float(logs[layer, best] - logs[layer, at]), 4),
                "certain": certain,
            }
        )
    return found


def kept(program: Program, nothing: Program, table: Table) -> dict[str, float]:
    """Log-probabilities in nats of the argmax, of a placed program, and of saying nothing; `share`: how much of the way
    from nothing to the argmax the program goes."""
    logs = table.log_kinds(table.mean())[:, : len(table.labels)]

    def explained(labels: list[str]) -> float:
        return float(sum(logs[layer, table.labels.index(label)] for layer, label in enumerate(labels)))

    most, own, least = float(logs.max(axis=1).sum()), explained(program.labels()), explained(nothing.labels())
    share = 1.0 if most - least < 1e-9 else (own - least) / (most - least)
    return {
        "argmax": round(most, 4),
        "rule": round(own, 4),
        "nothing": round(least, 4),
        "share": round(share, 4),
    }


def _where(start: int, end: int, layers: int, *, parted: bool) -> str:
    if (start, end) == (0, layers):
        return "ends" if parted else "everywhere"
    if start == 0:
        return "early"
    return "late" if end == layers else "middle"
