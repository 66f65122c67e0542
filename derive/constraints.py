"""`derive.rules`: what a layout under a budget must keep to, from YAML to rows of an integer programme.

Each rule is a mapping with one or more of these, and `name` if it is to be called otherwise:

    block: feed_forward              a block's name, a candidate's label, `attention` (all attention-like), or a list: a
    group at_most | at_least | exactly   how many layers may hold it, in `layers: [start, end]` where that is given
    only_in: [start, end]          it stands nowhere else longest_run: 3                 no more than so many one behind
    the other cost: flops_per_token            or parameters, or the unit of the run's cost table at_most
    the layers' sum

A range is two integers, layers counted from 0 with the end left out, or two numbers with a decimal point, fractions of
depth.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from derive import file_checks as checks
from supernet.blocks import BLOCKS, Candidate
from supernet.errors import SettingError, did_you_mean
from supernet.settings import check_int

BLOCK_KEYS = ("name", "block", "at_most", "at_least", "exactly", "layers", "only_in", "longest_run")
COST_KEYS = ("name", "cost", "at_most")


@dataclass(frozen=True)
class Constraint:
    """Bounds on a weighted count over layers [start, end), or with `run` on the longest row of blocks of weight 1.

    `weights` [C]; `value` is what the user wrote; `sentence` says it in words; `path` is its key,
    `derive.rules[i].key`.
    """

    name: str
    path: str
    sentence: str
    value: Any
    weights: np.ndarray
    layers: tuple[bool, ...]
    low: float | None = None
    high: float | None = None
    run: bool = False

    def measure(self, choice: Sequence[int]) -> float:
        """What the layout (a candidate's index a layer) makes of the bounded figure."""
        values = np.where(self.layers, self.weights[list(choice)], 0.0)
        if not self.run:
            return float(values.sum())
        longest = current = 0
        for value in values:
            current = current + 1 if value else 0
            longest = max(longest, current)
        return longest

    def holds(self, choice: Sequence[int]) -> bool:
        """Whether the layout keeps to it, up to rounding of costs."""
        figure = self.measure(choice)
        slack = 1e-9 * max(1.0, abs(figure))
        return (self.low is None or figure >= self.low - slack) and (self.high is None or figure <= self.high + slack)

    def rows(self) -> tuple[np.ndarray, float, float]:
        """Rows [R, N * C] with their lower and upper bound."""
        grid = np.asarray(self.layers, dtype=np.float64)[:, None] * self.weights  # [N, C]
        low, high = (-np.inf if self.low is None else self.low), (np.inf if self.high is None else self.high)
        if not self.run:
            return grid.ravel()[None], low, high
        window, layers = int(self.high) + 1, len(self.layers)
        rows = np.zeros((max(0, layers - window + 1), *grid.shape))
        for start in range(len(rows)):
            rows[start, start : start + window] = grid[start : start + window]
        return rows.reshape(len(rows), -1), low, high


def parse_rules(
    rules: Any,
    candidates: list[Candidate],
    labels: list[str],
    layers: int,
    costs: Mapping[str, np.ndarray],
    path: str = "derive.rules",
) -> list[Constraint]:
    """Constraints on layouts of `layers` layers; `costs`: unit -> cost of each candidate [C].

    Raises SettingError naming `derive.rules[i].key` for unknown keys and blocks, wrong types and rules that bound
    nothing.
    """
    if rules is None:
        return []
    if isinstance(rules, (str, bytes)) or not isinstance(rules, Sequence):
        raise SettingError(path, f"expected a list of rules, got {rules!r}")
    found: list[Constraint] = []
    for index, rule in enumerate(rules):
        where = f"{path}[{index}]"
        known = COST_KEYS if isinstance(rule, Mapping) and "cost" in rule else BLOCK_KEYS
        rule = {key: value for key, value in checks.check_object(rule, where, known).items() if value is not None}
        if "cost" in rule:
            found += _cost_rule(rule, layers, costs, where)
        else:
            found += _block_rule(rule, candidates, labels, layers, where)
    names = [constraint.name for constraint in found]
    for constraint in found:
        if names.count(constraint.name) > 1 or constraint.name == "budget":
            raise SettingError(
                constraint.path, f"the name {constraint.name!r} is taken by another rule; give it a 'name' of its own"
            )
    return found


def check_budget(value: Any, path: str = "derive.budget") -> float:
    """The value itself when it is a number in (0, 1]; SettingError otherwise."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise SettingError(
            path, f"expected a fraction of the interleaved baseline's cost above 0 and at most 1, got {value!r}"
        )
    return value


def _cost_rule(rule: dict[str, Any], layers: int, costs: Mapping[str, np.ndarray], where: str) -> list[Constraint]:
    unit = checks.check_text(rule["cost"], f"{where}.cost")
    if unit not in costs:
        raise SettingError(f"{where}.cost", f"unknown unit {unit!r}{did_you_mean(unit, costs)}")
    if "at_most" not in rule:
        raise SettingError(where, "a cost rule needs 'at_most'")
    high = checks.check_number(rule["at_most"], f"{where}.at_most")
    sentence = f"the layers' {unit} sum to at most {high:g}"
    return [_constraint(rule, "at_most", where, unit, sentence, costs[unit], (True,) * layers, high=high)]


def _block_rule(
    rule: dict[str, Any], candidates: list[Candidate], labels: list[str], layers: int, where: str
) -> list[Constraint]:
    if "block" not in rule:
        raise SettingError(where, "has neither 'block' nor 'cost'")
    members, called = _members(rule["block"], candidates, labels, f"{where}.block")
    inside = _range(rule["layers"], layers, f"{where}.layers") if "layers" in rule else (True,) * layers
    within = "" if all(inside) else f" in layers {inside.index(True)} to {layers - 1 - inside[::-1].index(True)}"
    if "exactly" in rule and ("at_most" in rule or "at_least" in rule):
        raise SettingError(f"{where}.exactly", "excludes at_most and at_least")
    found = []
    for key, words in (("at_most", "at most"), ("at_least", "at least"), ("exactly", "exactly")):
        if key in rule:
            count = check_int(rule[key], f"{where}.{key}", least=0)
            bounds = {"low": None if key == "at_most" else count, "high": None if key == "at_least" else count}
            sentence = f"{called} in {words} {count} layers{within}"
            found.append(_constraint(rule, key, where, called, sentence, members, inside, **bounds))
    if "at_least" in rule and "at_most" in rule and rule["at_least"] > rule["at_most"]:
        raise SettingError(f"{where}.at_least", f"{rule['at_least']} is more than at_most {rule['at_most']}")
    if "only_in" in rule:
        outside = tuple(not layer for layer in _range(rule["only_in"], layers, f"{where}.only_in"))
        first, last = outside.index(False), layers - 1 - outside[::-1].index(False)
        sentence = f"{called} only in layers {first} to {last}"
        found.append(_constraint(rule, "only_in", where, called, sentence, members, outside, high=0))
    if "longest_run" in rule:
        count = check_int(rule["longest_run"], f"{where}.longest_run", least=1)
        sentence = f"{called} at most {count} times one behind the other{within}"
        found.append(_constraint(rule, "longest_run", where, called, sentence, members, inside, high=count, run=True))
    if not found:
        raise SettingError(where, "bounds nothing: give at_most, at_least, exactly, only_in or longest_run")
    named = "name" in rule and len(found) > 1
    return (
        [Constraint(**{**c.__dict__, "name": f"{c.name}, {c.path.rpartition('.')[2]}"}) for c in found]
        if named
        else found
    )


def _constraint(
    rule: dict[str, Any],
    key: str,
    where: str,
    called: str,
    sentence: str,
    weights: np.ndarray,
    layers: tuple[bool, ...],
    **bounds: Any,
) -> Constraint:
    name = checks.check_text(rule["name"], f"{where}.name") if "name" in rule else f"{called} {key} {rule[key]}"
    return Constraint(name, f"{where}.{key}", sentence, rule[key], weights, layers, **bounds)


def _members(value: Any, candidates: list[Candidate], labels: list[str], path: str) -> tuple[np.ndarray, str]:
    """Which candidates [C] (1.0 or 0.0) a block's name, a label, `attention` or a list of them means, and their
    name."""
    several = isinstance(value, (list, tuple))
    members = np.zeros(len(candidates))
    for index, word in enumerate(value if several else [value]):
        where = f"{path}[{index}]" if several else path
        known = ["attention", *dict.fromkeys([*(c.block for c in candidates), *labels])]
        checks.check_text(word, where)
        fits = [
            word in (label, candidate.block) or (word == "attention" and candidate.attention_like)
            for label, candidate in zip(labels, candidates, strict=True)
        ]
        if not any(fits):
            kind = "is no candidate of this search" if word in BLOCKS else f"unknown block {word!r}"
            raise SettingError(
                where,
                f"{word!r} {kind}{did_you_mean(word, known)}" if word in BLOCKS else kind + did_you_mean(word, known),
            )
        members[fits] = 1.0
    if not members.any():
        raise SettingError(path, "names no block")
    return members, "+".join(value) if several else value


def _range(value: Any, layers: int, path: str) -> tuple[bool, ...]:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise SettingError(path, f"expected [start, end], got {value!r}")
    start, end = (checks.check_number(edge, f"{path}[{index}]") for index, edge in enumerate(value))
    if any(isinstance(edge, float) for edge in value):
        if not 0 <= start < end <= 1:
            raise SettingError(path, f"expected fractions of the depth, 0 <= start < end <= 1, got {list(value)}")
        start, end = round(start * layers), round(end * layers)
    if not 0 <= start < end <= layers:
        raise SettingError(path, f"expected layers 0 <= start < end <= {layers}, got {list(value)}")
    return tuple(start <= layer < end for layer in range(layers))
