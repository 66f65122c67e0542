"""Rules -> layout: what the program says, or with a forced cut or ratio attention spread evenly in its region."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from derive.kind_table import Table
from derive.patterns import check_cut, check_ratio, par_positions, spread
from derive.programs import ATTENTION, Clause, Program
from derive.rules import Findings
from supernet.blocks import Candidate


@dataclass(frozen=True)
class Layout:
    """Layers with the program and the rules that made them; `why` names for each layer the rule that decides it."""

    layers: list[Candidate]
    why: list[str]
    rules: list[dict[str, Any]]
    program: Program


def par_rule_layout(
    table: Table,
    candidates: list[Candidate],
    findings: Findings,
    *,
    cut: float | None = None,
    ratio: float | None = None,
) -> Layout:
    """The layout of the program found, or with `cut` and `ratio` forced.

    Forced values replace the program's attention clauses: k = round(N / ratio) blocks, max(1, round(cut N / k)) apart,
    in a forced cut from layer 0 on. Raises SettingError for a cut outside (0, 1] or a ratio below 1.
    """
    layers, own = table.layers, findings.figures
    if cut is not None:
        check_cut(cut)
    if ratio is not None:
        check_ratio(ratio)
    program, forced = findings.program, cut is not None or ratio is not None
    if forced:
        program = _with_attention(program, table, _positions(layers, findings, cut, ratio))
    rules = [_forced(rule, cut, ratio, layers) for rule in findings.rules]
    if forced:
        rules[0] = {
            **rules[0],
            "forced": True,
            "learned": rules[0]["value"],
            "value": program.sentence(),
            "reason": f"Attention is placed by the forced cut or ratio. The evidence says: {rules[0]['reason']}",
        }
    start, end = (0, layers * cut) if cut is not None else (own.start, own.end)
    labels = program.labels()
    by_label = dict(zip(table.labels, candidates, strict=True))
    chosen = [by_label.get(label) or Candidate(label) for label in labels]
    why = ["ratio" if start <= layer < end or chosen[layer].attention_like else "cut" for layer in range(layers)]
    return Layout(chosen, why, [*rules, _rest_rule(program, table)], program)


def overruled(
    probabilities: np.ndarray, candidates: list[Candidate], labels: list[str], layers: list[Candidate], why: list[str]
) -> list[dict[str, Any]]:
    """Every layer whose block is not the likeliest candidate, with both probabilities (null: not a candidate) and the
    rule."""
    entries = []
    for layer, (row, chosen, rule) in enumerate(zip(probabilities, layers, why, strict=True)):
        best = int(row.argmax())
        if chosen == candidates[best]:
            continue
        at = candidates.index(chosen) if chosen in candidates else None
        entries.append(
            {
                "layer": layer,
                "preferred": labels[best],
                "chosen": chosen.label if at is None else labels[at],
                "rule": rule,
                "preferred_probability": round(float(row[best]), 6),
                "chosen_probability": None if at is None else round(float(row[at]), 6),
            }
        )
    return entries


def rule_names(layout: Layout, probabilities: np.ndarray, candidates: list[Candidate]) -> list[str]:
    """For each layer the rule that sets it against its likeliest candidate: `cut`, `ratio`, `kind` or `rest`."""
    names = []
    for row, chosen, why in zip(probabilities, layout.layers, layout.why, strict=True):
        best = candidates[int(row.argmax())]
        if best.attention_like and chosen.attention_like:
            names.append("kind")
        elif best.attention_like or chosen.attention_like:
            names.append(why)
        else:
            names.append("rest")
    return names


def _positions(layers: int, findings: Findings, cut: float | None, ratio: float | None) -> list[int]:
    own = findings.figures
    if ratio is None:
        ratio = layers / own.count if own.count else None
    if ratio is None or round(layers / ratio) == 0:
        return []
    start, end = (own.start, own.end) if own.end else (0, layers)
    if cut is None and start > 0:
        count = min(round(layers / ratio), layers - start)
        return spread(start, max(end, start + count), count, stride=max(1, round((end - start) / count)))
    return par_positions(layers, round(end / layers, 6) if cut is None else cut, ratio)


def _with_attention(program: Program, table: Table, positions: list[int]) -> Program:
    """The program with attention at these evenly spaced layers in place of its own, of the kinds it has there."""
    mixes = {label for label, yes in zip(table.labels, table.attention, strict=True) if yes} | {ATTENTION}
    others = tuple(clause for clause in program.clauses if clause.holds not in mixes)
    rest = program.rest if program.rest.holds not in mixes else Clause("rest", _unmixed(table))
    if not positions:
        return Program(program.layers, rest, others)
    labels = program.labels()
    held = [layer for layer, label in enumerate(labels) if label in mixes]
    blocks = [_nearest(layer, held, labels, table) for layer in positions]
    stride = positions[1] - positions[0] if len(positions) > 1 else 1
    end = min(program.layers, positions[0] + stride * len(positions))
    clause = Clause("every", blocks[0], positions[0], end, stride)
    if len(set(blocks)) > 1:
        clause = replace(clause, holds=ATTENTION, blocks=tuple(blocks))
    return Program(program.layers, rest, (*others, clause))


def _nearest(layer: int, held: list[int], labels: list[str], table: Table) -> str:
    """What the program's attention block nearest to a layer is; the likeliest attention-like candidate where it has
    none."""
    if held:
        return labels[min(held, key=lambda other: (abs(other - layer), other))]
    mass = np.where(table.attention, table.mean().sum(axis=0), -1.0)
    return table.labels[int(mass.argmax())] if table.attention.any() else "self_attention"


def _unmixed(table: Table) -> str:
    """What stands in the layers without attention where the program has attention throughout."""
    return "feed_forward" if table.attention.all() else table.default


def _forced(rule: dict[str, Any], cut: float | None, ratio: float | None, layers: int) -> dict[str, Any]:
    """The rule itself, or with the value forced and whether the evidence bears that out."""
    value = {"cut": cut, "ratio": ratio}.get(rule["rule"])
    if value is None:
        return rule
    if rule["rule"] == "cut":
        low, high = rule["interval"] or (rule["value"], rule["value"])
        agrees = rule["region"][0] == 0 and low - 1 / layers <= value <= high + 1 / layers
    else:
        low, high = (1.0 if rule["interval"][0] is None else rule["interval"][0]), rule["interval"][1]
        agrees = low <= value and (high is None or value <= high)
    return {
        **rule,
        "value": value,
        "forced": True,
        "learned": rule["value"],
        "supported": bool(rule["supported"] and agrees),
        "reason": f"Forced to {value:.4g}. The evidence says: {rule['reason']}",
    }


def _rest_rule(program: Program, table: Table) -> dict[str, Any]:
    """What stands in the layers that no clause holds."""
    holds = program.rest.holds
    rule = {"rule": "rest", "value": holds, "interval": None, "supported": True, "selection": table.selection}
    if holds not in table.kinds:
        reason = (
            "Not supported by the evidence: all candidates are attention-like, so the other layers are feed_forward "
            "unsearched."
        )
        return {**rule, "supported": False, "reason": reason}
    return {**rule, "reason": f"The layers that no clause holds are {holds}."}
