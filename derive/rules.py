"""Evidence -> rules: the program that explains the table best, and what the PAR paper's rules say of it.

One model: the program (`program_search`) and its certainty (`program_certainty`) are found first; how many attention
blocks, where, of which kind, and how much identity are read off that program and off the selected table, the one that
pictures draw. A rule is a dictionary with `rule`, `value`, `interval` (95 % of the draws), `supported`, `reason`,
`selection` and the figures behind it. Ranges are [start, end) in the file, first and last layer in sentences.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from derive.kind_table import Table
from derive.program_certainty import ENOUGH, Certainty, certainty
from derive.program_reading import Figures, contradictions, figures, placed
from derive.program_rule import UNSUPPORTED, interval, prefix, program_rule, why
from derive.programs import Program


@dataclass(frozen=True)
class Findings:
    """The program with its places, its certainty, what it contradicts and keeps, and all rules for the file."""

    program: Program
    sure: Certainty
    figures: Figures
    contradicted: list[dict[str, Any]]
    rules: list[dict[str, Any]]


def find_rules(table: Table, seed: int = 0) -> Findings:
    """All rules that the table tells, each with whether the evidence bears it out. The same table gives the same
    rules."""
    sure = certainty(table, seed)
    program = placed(sure.program, table)
    drawn = _Drawn(table, sure, [figures(one, table) for one in sure.shortlist], figures(program, table))
    contradicted = contradictions(program, table)
    rules = [
        program_rule(table, sure, program, contradicted),
        _thirds_rule(drawn, program),
        _cut_rule(drawn),
        _ratio_rule(drawn),
        _kind_rule(drawn, program),
        _identity_rule(drawn),
    ]
    rules = [{**rule, "selection": table.selection} for rule in rules]
    return Findings(program, sure, drawn.own, contradicted, rules)


@dataclass(frozen=True)
class _Drawn:
    """The figures of the program, `own`, and of the shortlist, with the draws that choose from it."""

    table: Table
    sure: Certainty
    listed: list[Figures]
    own: Figures

    def share(self, same: Callable[[Figures], bool]) -> float:
        """Share of draws of whose best program this is true."""
        return float(np.array([same(one) for one in self.listed])[self.sure.picks].mean())

    def returns(self, same: Callable[[Figures], bool]) -> bool:
        """Whether the program is supported and this is true in 95 % of the draws."""
        return self.sure.supported and self.share(same) >= ENOUGH

    def interval(self, figure: Callable[[Figures], float]) -> list[float]:
        """95 % of the draws, as values that occur."""
        return interval(np.array([figure(one) for one in self.listed])[self.sure.picks])

    def masses(self, which: np.ndarray) -> np.ndarray:
        """Summed probability of the candidates in `which` [C] in each draw, [draws, N]."""
        rows = np.concatenate([window[:, :, which].sum(axis=2) for window in self.table.windows()])
        return np.asarray(self.sure.weights @ rows / len(self.table.samples))

    def but(self, supported: bool, same: Callable[[Figures], bool] | None = None) -> str:
        """Behind a reason: why the evidence does not bear it out, where it does not."""
        if supported:
            return ""
        if self.sure.supported and same is not None:
            return f"; so it is in {self.share(same):.0%} of the draws of seeds and steps only"
        return f"; {why(self.sure)}"


def _thirds_rule(drawn: _Drawn, program: Program) -> dict[str, Any]:
    table = drawn.table
    parts = np.array_split(np.arange(table.layers), 3)
    curve, draws = table.mass(table.attention), drawn.masses(table.attention)
    mixes = dict(zip(table.labels, table.attention, strict=True))
    held = np.array([mixes[label] for label in program.labels()])
    supported = drawn.sure.supported and table.layers >= 3
    values = [round(float(curve[part].sum()), 4) for part in parts]
    told = ", ".join(f"{value:.1f} of {len(part)}" for value, part in zip(values, parts, strict=True))
    return {
        "rule": "attention_per_third",
        "value": values,
        "interval": [interval(draws[:, part].sum(axis=1)) for part in parts],
        "supported": supported,
        "layers": [len(part) for part in parts],
        "program": [int(held[part].sum()) for part in parts],
        "reason": f"{prefix(supported)}Expected attention-like blocks in the first, middle and last third of the "
        f"depth: {told}; the program has {', '.join(str(int(held[part].sum())) for part in parts)}.",
    }


def _cut_rule(drawn: _Drawn) -> dict[str, Any]:
    own, layers = drawn.own, drawn.table.layers

    def same(one: Figures) -> bool:
        return own.near(one, layers)

    supported = own.where != "ends" and drawn.returns(same)
    rule = {
        "rule": "cut",
        "value": round(own.end / layers, 6),
        "interval": None,
        "supported": supported,
        "where": own.where,
        "region": [own.start, own.end],
        "returns": round(drawn.share(same), 4),
        "reason": f"{prefix(supported)}{_region(drawn)}{drawn.but(supported or own.where == 'ends', same)}.",
    }
    if own.where in ("early", "middle", "late"):
        ends = drawn.interval(lambda one: one.end)
        rule["interval"] = [round(edge / layers, 6) for edge in ends]
        rule["start_interval"] = [int(edge) for edge in drawn.interval(lambda one: one.start)]
        rule["end_interval"] = [int(edge) for edge in ends]
    return rule


def _region(drawn: _Drawn) -> str:
    """Where attention lies, with its mass inside and outside in the selected table."""
    own, layers, mass = drawn.own, drawn.table.layers, drawn.table.mass(drawn.table.attention)
    inside = np.zeros(layers, dtype=bool)
    inside[own.start : own.end] = True
    if own.where in ("nowhere", "everywhere", "ends"):
        told = {
            "nowhere": "Attention pays nowhere",
            "everywhere": "Attention sits at every depth",
            "ends": "Attention sits at both ends, which one region cannot say",
        }[own.where]
        return f"{told}: its mass is {mass.mean():.2f} on average"
    if own.where == "early":
        told = f"Attention pays in the first {own.end} of {layers} layers and no longer behind them"
    elif own.where == "late":
        told = f"Attention pays only in the last {layers - own.start} of {layers} layers"
    else:
        told = f"Attention pays in the middle, in layers {own.start} to {own.end - 1} of {layers}"
    return f"{told}: mass {mass[inside].mean():.2f} there and {mass[~inside].mean():.2f} elsewhere"


def _ratio_rule(drawn: _Drawn) -> dict[str, Any]:
    own, layers, table = drawn.own, drawn.table.layers, drawn.table
    masses = table.selected()[:, :, table.attention].sum(axis=2)  # [S, N]

    def same(one: Figures) -> bool:
        return abs(one.count - own.count) <= max(1, own.count // 8)

    supported = drawn.returns(same)
    low, high = drawn.interval(lambda one: one.count)
    shown = f"one attention block in {layers / own.count:.2f} layers" if own.count else "no attention block"
    expected, preferred = float(masses.sum(axis=1).mean()), float((masses > 0.5).sum(axis=1).mean())
    return {
        "rule": "ratio",
        "value": _over(layers, own.count),
        "interval": [_over(layers, high), _over(layers, low)],
        "supported": supported,
        "expected": round(expected, 4),
        "preferred": round(preferred, 4),
        "count_interval": [int(low), int(high)],
        "reason": f"{prefix(supported)}{shown} ({own.count} of {layers} in the program; the probabilities sum to "
        f"{expected:.1f}, and {preferred:.1f} layers prefer one){drawn.but(supported, same)}.",
    }


def _kind_rule(drawn: _Drawn, program: Program) -> dict[str, Any]:
    """The attention-like candidates of the program by depth, or the likeliest where it has none or leaves it open."""
    table, own = drawn.table, drawn.own
    rule: dict[str, Any] = {"rule": "kind", "value": None, "interval": None, "supported": False}
    labels = [label for label, mixes in zip(table.labels, table.attention, strict=True) if mixes]
    if not labels:
        return {**rule, "reason": f"{UNSUPPORTED}no candidate is attention-like."}
    shares = table.mean()[:, table.attention].mean(axis=0)
    rule["shares"] = {label: round(float(share), 4) for label, share in zip(labels, shares, strict=True)}
    if len(labels) == 1:
        sure = drawn.sure.supported
        reason = f"{prefix(sure)}{labels[0]} is the only attention-like candidate{drawn.but(sure)}."
        return {**rule, "value": labels[0], "supported": sure, "reason": reason}
    likeliest = labels[int(shares.argmax())]
    named = own.count > 0 and set(own.kinds) <= set(labels)

    def same(one: Figures) -> bool:
        return one.kinds == own.kinds

    rule["supported"] = named and drawn.returns(same)
    if not named:
        open_kind = "leaves the kind to each layer" if own.count else "has no attention block"
        reason = f"{UNSUPPORTED}the program {open_kind}; most mass has {likeliest}."
        return {**rule, "value": likeliest, "reason": reason}
    pieces = _by_depth(program, labels)
    told = " and ".join(f"{one['candidate']} in layers {one['first']} to {one['last']}" for one in pieces)
    rule["value"] = pieces if len(pieces) > 1 else pieces[0]["candidate"]
    return {
        **rule,
        "reason": f"{prefix(rule['supported'])}the attention blocks are {told}{drawn.but(rule['supported'], same)}.",
    }


def _by_depth(program: Program, labels: list[str]) -> list[dict[str, Any]]:
    """Attention-like candidates with the first and the last layer that each holds, in the order of depth."""
    layers: dict[str, list[int]] = {}
    for layer, label in enumerate(program.labels()):
        if label in labels:
            layers.setdefault(label, []).append(layer)
    return [{"candidate": label, "first": held[0], "last": held[-1]} for label, held in layers.items()]


def _identity_rule(drawn: _Drawn) -> dict[str, Any]:
    table, own = drawn.table, drawn.own
    rule: dict[str, Any] = {"rule": "identity", "value": None, "interval": None, "supported": False}
    if not table.identity.any():
        return {**rule, "reason": f"{UNSUPPORTED}identity was no candidate."}
    mass = float(table.mass(table.identity).mean())

    def same(one: Figures) -> bool:
        return abs(one.idle - own.idle) <= max(1, own.idle // 8)

    supported = drawn.returns(same)
    left = f", so {table.layers - own.idle} layers would do" if own.idle else ""
    return {
        **rule,
        "value": round(mass, 6),
        "interval": interval(drawn.masses(table.identity).mean(axis=1)),
        "supported": supported,
        "layers_with_identity": own.idle,
        "useful_layers": table.layers - own.idle,
        "reason": f"{prefix(supported)}identity has a share of {mass:.2f}, and holds {own.idle} of {table.layers} "
        f"layers of the program{left}{drawn.but(supported, same)}.",
    }


def _over(layers: int, count: float) -> float | None:
    return round(layers / count, 6) if count > 0 else None
