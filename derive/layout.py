"""Rules -> layout: attention blocks spread evenly in their region, kinds as learned, the rest feed-forward."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from derive.patterns import check_cut, check_ratio, par_positions, spread
from derive.rules import Findings
from supernet.blocks import Candidate


@dataclass(frozen=True)
class Layout:
    """Layers with the rules that made them; `why` names for each layer the rule that decides it."""

    layers: list[Candidate]
    why: list[str]
    rules: list[dict[str, Any]]


def par_rule_layout(
    probabilities: np.ndarray,
    candidates: list[Candidate],
    labels: list[str],
    findings: Findings,
    *,
    cut: float | None = None,
    ratio: float | None = None,
) -> Layout:
    """The layout of the rules found, or with `cut` and `ratio` forced, for [N, C] probabilities.

    A forced cut's region starts at layer 0. Raises SettingError for a cut outside (0, 1] or a ratio below 1.
    """
    layers = len(probabilities)
    if cut is not None:
        check_cut(cut)
    if ratio is not None:
        check_ratio(ratio)
    rules = [_forced(rule, cut, ratio, layers) for rule in findings.rules]
    attention = set(_positions(layers, findings, cut, ratio))
    rest, rest_rule = _rest(probabilities, candidates, labels, sorted(set(range(layers)) - attention))
    chosen, why = [], []
    end = layers * cut if cut is not None else findings.end
    for layer in range(layers):
        inside = (0 if cut is not None else findings.start) <= layer < end
        chosen.append(_kind(layer, findings, candidates, labels) if layer in attention else rest)
        why.append("ratio" if inside or layer in attention else "cut")
    return Layout(chosen, why, [*rules, rest_rule])


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
    learned = next(rule["value"] for rule in findings.rules if rule["rule"] == "ratio")
    ratio = learned if ratio is None else ratio
    if ratio is None or round(layers / ratio) == 0:
        return []
    start, end = (findings.start, findings.end) if findings.end else (0, layers)
    if cut is None and start > 0:
        count = min(round(layers / ratio), layers - start)
        return spread(start, max(end, start + count), count, stride=max(1, round((end - start) / count)))
    return par_positions(layers, round(end / layers, 6) if cut is None else cut, ratio)


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


def _kind(layer: int, findings: Findings, candidates: list[Candidate], labels: list[str]) -> Candidate:
    label = next((label for start, end, label in findings.kinds if start <= layer < end), None)
    return Candidate("self_attention") if label is None else candidates[labels.index(label)]


def _rest(
    probabilities: np.ndarray, candidates: list[Candidate], labels: list[str], where: list[int]
) -> tuple[Candidate, dict[str, Any]]:
    """What stands in the layers without attention: the likeliest feed_forward there, or what is nearest to one."""
    rule = {"rule": "rest", "interval": None, "supported": True}
    mass = probabilities[where].sum(axis=0) if where else probabilities.sum(axis=0)
    kinds = (
        (lambda c: c.block == "feed_forward", "The other layers are {}."),
        (
            lambda c: not c.attention_like and c.block != "identity",
            "feed_forward was no candidate, so the other layers are {}.",
        ),
        (
            lambda c: c.block == "identity",
            "Of blocks that are not attention only identity was a candidate: the other layers are {}.",
        ),
    )
    for fits, reason in kinds:
        fitting = [index for index, candidate in enumerate(candidates) if fits(candidate)]
        if fitting:
            best = max(fitting, key=lambda index: (mass[index], -index))
            return candidates[best], {**rule, "value": labels[best], "reason": reason.format(labels[best])}
    reason = (
        "Not supported by the evidence: all candidates are attention-like, so the other layers are feed_forward "
        "unsearched."
    )
    return Candidate("feed_forward"), {**rule, "value": "feed_forward", "supported": False, "reason": reason}
