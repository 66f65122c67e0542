"""Evidence -> rules, as the PAR paper read them off its searches: how many attention blocks, where, and of which kind.

Pure functions of arrays. N layers, C candidates, S seeds; *mass* of a layer is the summed probability of its
attention-like candidates. A rule is a dictionary with `rule`, `value`, `interval` (95 %), `supported`, `reason` and the
figures behind it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from derive import change_point
from derive.change_point import LARGEST_CHANCE, Region
from derive.kinds import pieces

DRAWS = 1000  # of the bootstrap
LEAST_STEP = 0.1  # between the masses inside and outside of a region
DECIDED = 0.8  # mean probability of the likelier side, from which on layers are counted instead of probabilities summed
T_99 = 2.75  # Student's t for 99 % at about 30 degrees of freedom
UNSUPPORTED = "Not supported by the evidence: "


@dataclass(frozen=True)
class Table:
    """Probabilities to read rules from: one array [K_s, N, C] of recorded steps a seed, and which candidates are
    what."""

    samples: list[np.ndarray]
    labels: list[str]
    attention: np.ndarray  # [C] bool
    identity: np.ndarray  # [C] bool

    @property
    def layers(self) -> int:
        """N."""
        return self.samples[0].shape[1]

    def mass(self, kind: np.ndarray) -> np.ndarray:
        """Summed probability of the candidates in `kind` [C], mean over each seed's steps: [S, N]."""
        return np.stack([sample[:, :, kind].sum(axis=2).mean(axis=0) for sample in self.samples])

    def draws(self, kind: np.ndarray, seed: int) -> np.ndarray:
        """Bootstrap of the mass [DRAWS, N]: seeds drawn with replacement, of each one recorded step, averaged."""
        rng = np.random.default_rng(seed)
        masses = [sample[:, :, kind].sum(axis=2) for sample in self.samples]
        drawn = rng.integers(len(masses), size=(DRAWS, len(masses)))
        total = np.zeros((DRAWS, self.layers))
        for column in range(len(masses)):
            for index, mass in enumerate(masses):
                rows = np.flatnonzero(drawn[:, column] == index)
                total[rows] += mass[rng.integers(len(mass), size=rows.size)]
        return total / len(masses)


@dataclass(frozen=True)
class Findings:
    """What the layout needs of the rules: attention blocks and their layers [start, end), and all rules for the
    file."""

    count: int
    start: int
    end: int
    rules: list[dict[str, Any]]
    # (first layer, layer behind the last, label), together all layers; empty: none to choose
    kinds: list[tuple[int, int, str]]


def find_rules(table: Table, seed: int = 0) -> Findings:
    """All rules that the table tells, each with whether the evidence bears it out. The same table gives the same
    rules."""
    rng = np.random.default_rng(seed)
    drawn = table.draws(table.attention, seed)
    counted = _count(table, drawn)
    thirds = _thirds_rule(table, drawn, counted)
    cut, start, end, count = _cut_rule(table, drawn, counted, rng)
    ratio = _ratio_rule(table.layers, counted, nowhere=count == 0)
    kind, kinds = _kind_rule(table, counted, rng)
    return Findings(
        count, start, end, [thirds, cut, ratio, kind, _identity_rule(table, table.draws(table.identity, seed))], kinds
    )


@dataclass(frozen=True)
class _Count:
    """Expected number of attention-like blocks: `value`, from `preferred` (layers with mass over 1/2) or `summed`."""

    value: float
    interval: list[float]
    preferred: float
    summed: float
    decided: bool
    supported: bool
    why: str


def _count(table: Table, drawn: np.ndarray) -> _Count:
    mass = table.mass(table.attention)  # [S, N]
    decided = float(np.maximum(mass, 1 - mass).mean()) >= DECIDED
    preferred, summed = float((mass > 0.5).sum(axis=1).mean()), float(mass.sum(axis=1).mean())
    counts = _per_seed_counts(table) if decided else drawn.sum(axis=1)
    supported, why = _differs(mass.mean(axis=0), table.attention, drawn.mean(axis=1))
    return _Count(preferred if decided else summed, _interval(counts), preferred, summed, decided, supported, why)


def _per_seed_counts(table: Table) -> np.ndarray:
    """Bootstrap of the mean over seeds of the number of layers with a mass over 1/2, one recorded step a drawn seed."""
    rng = np.random.default_rng(1)
    counts = [(sample[:, :, table.attention].sum(axis=2) > 0.5).sum(axis=1) for sample in table.samples]
    seeds = rng.integers(len(counts), size=(DRAWS, len(counts)))
    return np.array([np.mean([rng.choice(counts[seed]) for seed in row]) for row in seeds])


def _differs(mass: np.ndarray, kind: np.ndarray, drawn: np.ndarray) -> tuple[bool, str]:
    """Whether layers' masses [N] of the candidates in `kind` [C] are other than an untrained search's, and a clause on
    it.

    Either their mean is apart from the prior, or the layers diverge from the prior more than 99 % of random ones.
    """
    layers, ours, prior = len(mass), int(kind.sum()), float(kind.mean())
    if prior in (0.0, 1.0):
        return False, "all candidates are of one side, so there was nothing to choose"
    if layers == 1:
        return False, "one layer is too few to tell"
    low, high = np.quantile(drawn, (0.025, 0.975))
    error = T_99 * mass.std(ddof=1) / np.sqrt(layers)
    apart = abs(mass.mean() - prior) > max(0.05, error) and not low <= prior <= high
    random = np.random.default_rng(2).beta(ours, len(kind) - ours, size=(DRAWS, layers))
    if apart or _divergence(mass, prior).mean() > np.quantile(_divergence(random, prior).mean(axis=1), 0.99):
        return True, f"an untrained search would give {prior * layers:.1f}"
    return False, f"that cannot be told from the {prior * layers:.1f} of an untrained search"


def _divergence(mass: np.ndarray, prior: float) -> np.ndarray:
    """Kullback-Leibler divergence of (mass, 1 - mass) from (prior, 1 - prior), in nats."""
    mass = np.clip(mass, 1e-12, 1 - 1e-12)
    return mass * np.log(mass / prior) + (1 - mass) * np.log((1 - mass) / (1 - prior))


def _thirds_rule(table: Table, drawn: np.ndarray, counted: _Count) -> dict[str, Any]:
    parts = np.array_split(np.arange(table.layers), 3)
    curve = table.mass(table.attention).mean(axis=0)
    supported = counted.supported and table.layers >= 3
    values = [round(float(curve[part].sum()), 4) for part in parts]
    return {
        "rule": "attention_per_third",
        "value": values,
        "interval": [_interval(drawn[:, part].sum(axis=1)) for part in parts],
        "supported": supported,
        "layers": [len(part) for part in parts],
        "reason": f"{_prefix(supported)}Expected attention-like blocks in the first, middle and last third of "
        "the depth: "
        + ", ".join(f"{value:.1f} of {len(part)}" for value, part in zip(values, parts, strict=True))
        + f"; {counted.why}.",
    }


def _cut_rule(
    table: Table, drawn: np.ndarray, counted: _Count, rng: np.random.Generator
) -> tuple[dict[str, Any], int, int, int]:
    """The rule, the region's start and end, and the number of blocks for it."""
    layers, curves = table.layers, table.mass(table.attention)
    region = change_point.fit(curves.mean(axis=0)) if layers > 1 else None
    chance = change_point.chance(curves, rng) if region else 1.0
    clear = region is not None and chance <= LARGEST_CHANCE and abs(region.inside - region.outside) >= LEAST_STEP
    count = round(counted.value)
    if clear and region.kind != "ends" and _divides(region) and count > 0:
        first, region = region, change_point.extend(curves, region, rng)
        where, start, end, supported = region.kind, region.start, region.end, True
        reason = f"{_where(region, layers)}: mass {region.inside:.2f} there and {region.outside:.2f} elsewhere."
    else:
        where, start, end, supported, reason = _flat(curves.mean(axis=0), counted, region if clear else None)
    rule = {
        "rule": "cut",
        "value": round(end / layers, 6),
        "interval": None,
        "supported": supported,
        "where": where,
        "region": [start, end],
        "chance": round(chance, 4),
        "reason": reason,
    }
    if where in ("early", "middle", "late"):
        borders = change_point.borders_interval(drawn, region, rng, core=first)
        rule["interval"] = [round(edge / layers, 6) for edge in borders["end"]]
        rule["start_interval"], rule["end_interval"] = borders["start"], borders["end"]
    return rule, start, end, count


def _divides(region: Region) -> bool:
    """Whether attention pays inside and not outside: half the mass or less, or a majority that becomes a minority."""
    return region.outside <= region.inside / 2 or (
        region.inside > 0.5 >= region.outside and region.inside - region.outside >= 0.25
    )


def _where(region: Region, layers: int) -> str:
    if region.kind == "early":
        return f"Attention pays in the first {region.end} of {layers} layers and no longer behind them"
    if region.kind == "late":
        return f"Attention pays only from layer {region.start} of {layers} on, in the last {layers - region.start}"
    return f"Attention pays in the middle, in layers {region.start} to {region.end - 1} of {layers}"


def _flat(curve: np.ndarray, counted: _Count, region: Region | None) -> tuple[str, int, int, bool, str]:
    """Where attention goes when no single region holds it: (where, start, end, supported, reason)."""
    layers = len(curve)
    if round(counted.value) == 0:
        mass = f"its mass is {curve.mean():.2f} on average"
        reason = f"{_prefix(counted.supported)}attention pays nowhere: {mass}; {counted.why}."
        return "nowhere", 0, 0, counted.supported, reason
    if region is not None and region.kind == "ends":
        where = f"attention sits at both ends, and less in layers {region.start} to {region.end - 1}"
        return "ends", 0, layers, False, f"{UNSUPPORTED}{where}; one region cannot say that."
    if region is not None and not _divides(region):
        levels = (
            f"mass {region.inside:.2f} in layers {region.start} to {region.end - 1} and {region.outside:.2f} elsewhere"
        )
        reason = f"{_prefix(counted.supported)}attention pays everywhere, if unevenly: {levels}; {counted.why}."
        return "everywhere", 0, layers, counted.supported, reason
    thirds = [part.mean() for part in np.array_split(curve, 3) if part.size]
    if counted.supported and max(thirds) - min(thirds) <= 0.25:
        reason = f"Attention sits at every depth: its mass is {curve.mean():.2f}, with no change point."
        return "everywhere", 0, layers, True, reason
    few = "the layers are too few or too unlike one another to tell a region from chance"
    cause = few if counted.supported else counted.why
    return "everywhere", 0, layers, False, f"{UNSUPPORTED}no change point over the depth; {cause}."


def _ratio_rule(layers: int, counted: _Count, *, nowhere: bool) -> dict[str, Any]:
    low, high = counted.interval
    decided, summed = (
        "layers whose attention-like mass is over 1/2",
        "the summed probabilities, as few layers are decided",
    )
    by = decided if counted.decided else summed
    value = None if nowhere else round(layers / counted.value, 6)
    shown = "no attention block" if nowhere else f"one attention block in {layers / counted.value:.2f} layers"
    return {
        "rule": "ratio",
        "value": value,
        "interval": [_over(layers, high), _over(layers, low)],
        "supported": counted.supported,
        "expected": round(counted.summed, 4),
        "preferred": round(counted.preferred, 4),
        "count_interval": [low, high],
        "reason": f"{_prefix(counted.supported)}{shown} ({counted.value:.1f} of {layers}, by {by}); {counted.why}.",
    }


def _kind_rule(
    table: Table, counted: _Count, rng: np.random.Generator
) -> tuple[dict[str, Any], list[tuple[int, int, str]]]:
    """The winning attention-like candidate, or two of them one behind the other where the depth tells them apart."""
    labels = [label for label, chosen in zip(table.labels, table.attention, strict=True) if chosen]
    rule: dict[str, Any] = {"rule": "kind", "value": None, "interval": None, "supported": False}
    if not labels:
        return {**rule, "reason": f"{UNSUPPORTED}no candidate is attention-like."}, []
    seeds = np.stack([sample[:, :, table.attention].mean(axis=0) for sample in table.samples])  # [S, N, A]
    rule["shares"] = {
        label: round(float(share), 4) for label, share in zip(labels, seeds.mean(axis=(0, 1)), strict=True)
    }
    if len(labels) == 1:
        reason = f"{_prefix(counted.supported)}{labels[0]} is the only attention-like candidate; {counted.why}."
        rule |= {"value": labels[0], "supported": counted.supported, "reason": reason}
        return rule, [(0, table.layers, labels[0])]
    found, rule["chance"] = pieces(seeds, rng)
    rule["supported"] = table.layers > 1 and rule["chance"] <= LARGEST_CHANCE
    named = [{"layers": [start, end], "candidate": labels[kind]} for start, end, kind in found]
    rule["value"] = named if len(named) > 1 else named[0]["candidate"]
    told = " and ".join(
        f"{piece['candidate']} in layers {piece['layers'][0]} to {piece['layers'][1] - 1}" for piece in named
    )
    rule["reason"] = (
        f"Of the attention-like candidates {told} has most mass."
        if rule["supported"]
        else f"{UNSUPPORTED}the attention-like candidates cannot be told apart; most mass has {told}."
    )
    return rule, [(start, end, labels[kind]) for start, end, kind in found]


def _identity_rule(table: Table, drawn: np.ndarray) -> dict[str, Any]:
    rule: dict[str, Any] = {"rule": "identity", "value": None, "interval": None, "supported": False}
    if not table.identity.any():
        return {**rule, "reason": f"{UNSUPPORTED}identity was no candidate."}
    mass = table.mass(table.identity).mean(axis=0)
    supported, why = _differs(mass, table.identity, drawn.mean(axis=1))
    idle = int((mass > 0.5).sum())
    return {
        **rule,
        "value": round(float(mass.mean()), 6),
        "interval": _interval(drawn.mean(axis=1)),
        "supported": supported,
        "layers_with_identity": idle,
        "useful_layers": table.layers - idle,
        "reason": f"{_prefix(supported)}identity holds a share of {mass.mean():.2f} and wins {idle} of "
        f"{table.layers} layers{f', so {table.layers - idle} layers would do' if idle else ''}; {why}.",
    }


def _prefix(supported: bool) -> str:
    return "" if supported else UNSUPPORTED


def _interval(values: np.ndarray) -> list[float]:
    return [round(float(q), 4) for q in np.quantile(values, (0.025, 0.975))]


def _over(layers: int, count: float) -> float | None:
    return round(layers / count, 4) if count > 0 else None
