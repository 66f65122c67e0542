"""The rule `program` of a file: the program in words, what it keeps and contradicts, and how sure it is."""

from typing import Any

import numpy as np

from derive.kind_table import Table
from derive.program_certainty import ENOUGH, LEAST_MARGIN, Certainty
from derive.program_reading import kept, placed
from derive.programs import Program
from derive.seed_agreement import agreement

UNSUPPORTED = "Not supported by the evidence: "
ONE_SEED = " One seed: whether another would agree is not known."


def program_rule(table: Table, sure: Certainty, program: Program, contradicted: list[dict[str, Any]]) -> dict[str, Any]:
    """The rule of a placed program, with the layers that it contradicts."""
    keeps = kept(program, placed(sure.nothing, table), table)
    seeds = agreement(table.selected())
    nats = f"{keeps['rule']:.1f} of {keeps['argmax']:.1f} against {keeps['nothing']:.1f} nats"
    if program.clauses:
        reason = (
            f"It keeps {keeps['share']:.0%} of the log-probability by which the likeliest candidates beat saying only "
            f"'{sure.nothing.sentence()}' ({nats}), at {sure.bits:.0f} bits, and {why(sure)}."
        )
    else:
        reason = f"No clause is worth its length: {why(sure)}."
    reason += _against(contradicted)
    if seeds["by_layer"] is not None:
        reason += (
            f" Seeds agree on {seeds['by_layer']:.0%} of the layers, and on {seeds['by_composition']:.0%} when only "
            "the number of each kind counts."
        )
    return {
        "rule": "program",
        "value": program.sentence(),
        "interval": None,
        "supported": sure.supported,
        "bits": round(sure.bits, 3),
        "score": round(sure.score, 4),
        "margin": round(sure.margin, 4),
        "beats_noise": sure.beats_noise,
        "beats_nothing": sure.beats_nothing,
        "kept": keeps,
        "agreement": seeds,
        "clauses": [_clause_entry(sure, at) for at in range(len(sure.program.clauses))],
        "contradicted": contradicted,
        "reason": prefix(sure.supported) + reason + (ONE_SEED if len(table.samples) == 1 else ""),
    }


def _clause_entry(sure: Certainty, at: int) -> dict[str, Any]:
    """A clause's certainty: share of draws that have one like it, and intervals of its numbers over those."""
    clause, like = sure.program.clauses[at], sure.like(sure.program.clauses[at])
    numbers = ("period", "start", "end") if clause.form == "every" else ("count", "start", "end")
    return {
        "clause": clause.sentence(sure.program.layers),
        "supported": sure.clause_supported(at),
        "returns": round(sure.returns[at], 4),
        "exactly": round(sum(one == clause for one in like) / len(sure.picks), 4),
        "intervals": {name: interval(np.array([getattr(one, name) for one in like])) for name in numbers}
        if like
        else None,
    }


def _against(contradicted: list[dict[str, Any]]) -> str:
    """The layers that the rule contradicts, the certain ones by name."""
    if not contradicted:
        return " It contradicts no layer's likeliest candidate."
    certain = [entry for entry in contradicted if entry["certain"]]
    total = sum(entry["nats"] for entry in contradicted)
    number = "1 layer" if len(contradicted) == 1 else f"{len(contradicted)} layers"
    said = f" It contradicts {number}, at {total:.1f} nats"
    if not certain:
        return said + ", none certain in all seeds."
    named = ", ".join(
        f"{entry['layer']} ({entry['preferred']} {entry['preferred_probability']:.2f}, held {entry['chosen']})"
        for entry in certain
    )
    return f"{said}; of these all seeds are certain of layer{'s' if len(certain) > 1 else ''} {named}."


def why(sure: Certainty) -> str:
    """Clause of a sentence: what the program beats, or does not."""
    if sure.margin <= LEAST_MARGIN or sure.beats_noise < ENOUGH:
        return "that cannot be told from an untrained search"
    if sure.beats_nothing < ENOUGH:
        return f"it beats saying nothing in {sure.beats_nothing:.0%} of the draws only"
    beats = f"saying nothing in {sure.beats_nothing:.0%} of the draws"
    return f"it beats an untrained search by {sure.margin:.1f} nats and {beats}"


def prefix(supported: bool) -> str:
    """What the reason of an unsupported rule begins with."""
    return "" if supported else UNSUPPORTED


def interval(values: np.ndarray) -> list[float]:
    """95 % of the values; of whole numbers as values that occur."""
    whole = np.issubdtype(values.dtype, np.integer)
    found = np.quantile(values, (0.025, 0.975), method="nearest" if whole else "linear")
    return [int(q) if whole else round(float(q), 4) for q in found]
