"""The files of a run folder, each read strictly: UserError names the file and what is wrong in it."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from derive import file_checks as checks
from derive.strict_json import loads, read_bytes, read_json
from derive.yaml_file import read_yaml
from supernet.blocks import parse_candidate
from supernet.errors import SettingError, UserError
from supernet.settings import ModelSettings

ARCHITECTURE_ORDER = ("best", "argmax", "par-rule", "budget")
NUMBER = (int, float)
MEASURED = (
    "parameters",
    "flops_per_token",
    "relative_flops",
    "latency_ms",
    "held_out_loss",
    "standard_error",
    "perplexity",
    "bits_per_character",
)


@dataclass(frozen=True)
class Search:
    """What one search recorded (probabilities.json).

    `steps` [S]; `probabilities` [S, N, C] noise-free, rows sum to 1, N layers, C candidates in the order of
    `candidates`; `costs` [C] in `cost_unit`, NaN where the file has none; `budget` a fraction of the interleaved
    baseline or None.
    """

    candidates: list[str]
    steps: np.ndarray
    probabilities: np.ndarray
    costs: np.ndarray
    cost_unit: str
    cost_table: dict[str, float]
    budget: float | None
    seed: int | None
    verdict: dict[str, Any] | None

    @property
    def final(self) -> np.ndarray:
        """The last recorded probabilities [N, C]."""
        return self.probabilities[-1]

    def interleaved_cost(self) -> float:
        """The cost of `(sf)x(N/2)` in `cost_unit`; NaN where the table lacks self_attention or feed_forward."""
        pair = [self.cost_table.get(name, np.nan) for name in ("self_attention", "feed_forward")]
        return self.probabilities.shape[1] / 2 * float(sum(pair))

    def in_order_of(self, first: "Search", folder: Path) -> "Search":
        """This search with its candidates in the order of `first`; UserError where it has others, or other layers."""
        same_layers = self.probabilities.shape[1] == first.probabilities.shape[1]
        if sorted(self.candidates) != sorted(first.candidates) or not same_layers:
            raise UserError(f"{folder}: the seeds' probabilities.json differ in layers or candidates")
        order = [self.candidates.index(label) for label in first.candidates]
        table, costs = self.probabilities[:, :, order], self.costs[order]
        return dataclasses.replace(self, candidates=first.candidates, probabilities=table, costs=costs)

    def expected_cost(self) -> np.ndarray:
        """The expected cost of the layers at each recorded step, [S], in `cost_unit`."""
        return np.einsum("snc,c->s", self.probabilities, self.costs)

    def entropy(self) -> np.ndarray:
        """The entropy of each layer's probabilities at each recorded step, [S, N], in nats."""
        p = self.probabilities
        return -np.sum(p * np.log(np.where(p > 0, p, 1.0)), axis=2)

    def margin(self) -> np.ndarray:
        """The most probable candidate's lead over the second, [S, N]; 1 where there is a single candidate."""
        ranked = np.sort(self.probabilities, axis=2)
        return ranked[..., -1] - (ranked[..., -2] if ranked.shape[2] > 1 else 0.0)


def read_probabilities(path: Path) -> Search | None:
    """probabilities.json checked for shape, order and sums; None where there is no such file."""
    content = read_object(path)
    if content is None:
        return None
    for key in ("candidates", "steps", "probabilities"):
        if not isinstance(content.get(key), list) or not content[key]:
            raise UserError(f"{path}: {key}: expected a list with at least one entry")
    labels = content["candidates"]
    if not all(isinstance(label, str) for label in labels) or len(set(labels)) != len(labels):
        raise UserError(f"{path}: candidates: expected labels that differ from one another")
    steps = _array(content["steps"], 1, f"{path}: steps")
    if np.any(np.diff(steps) <= 0):
        raise UserError(f"{path}: steps: expected rising steps")
    table = _array(content["probabilities"], 3, f"{path}: probabilities")
    if table.shape[0] != len(steps) or table.shape[2] != len(labels) or not table.shape[1]:
        raise UserError(
            f"{path}: probabilities: expected [step][layer][candidate] with {len(steps)} steps and {len(labels)} "
            "candidates, "
            f"got {'x'.join(map(str, table.shape))}"
        )
    sums = table.sum(axis=2)
    if table.min() < 0 or np.abs(sums - 1).max() > 1e-3:
        at = np.unravel_index(np.abs(sums - 1).argmax(), sums.shape)
        raise UserError(
            f"{path}: probabilities[{at[0]}][{at[1]}]: expected numbers from 0 that sum to 1, got {sums[at]:.6g}"
        )
    return _with_cost(path, content, steps.astype(int), table)


def read_metrics(path: Path) -> dict[str, np.ndarray]:
    """metrics.jsonl as columns: numbers as float64 (NaN where missing or null), words as str; empty without the file.

    A last line that its writer has not finished is left out, so that a running search can be read.
    """
    if not path.exists():
        return {}
    lines = read_bytes(path).split(b"\n")[:-1]
    rows = []
    for number, line in enumerate(lines, 1):
        row = loads(line, f"{path}:{number}")
        step = row.get("step") if isinstance(row, dict) else None
        if isinstance(step, bool) or not isinstance(step, int):
            raise UserError(f"{path}:{number}: expected an object with an integer 'step'")
        if rows and step <= rows[-1]["step"]:
            raise UserError(f"{path}:{number}: step {step} does not come after step {rows[-1]['step']}")
        rows.append(row)
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: _column([row.get(key) for row in rows], f"{path}: {key}") for key in keys}


def layer_labels(architecture: dict[str, Any]) -> list[str]:
    """The candidates' labels of an architecture file's layers; a block that is not registered here goes by its name."""
    labels = []
    for layer in architecture["layers"]:
        try:
            settings = ModelSettings.from_mapping(architecture.get("model", {}))
            labels.append(parse_candidate(layer, settings).label)
        except UserError:
            labels.append(str(layer["block"]))
    return labels


def _with_cost(path: Path, content: dict[str, Any], steps: np.ndarray, table: np.ndarray) -> Search:
    cost = content.get("cost") or {}
    prices = cost.get("candidates") or {} if isinstance(cost, dict) else None
    if not isinstance(prices, dict) or not all(isinstance(value, NUMBER) for value in prices.values()):
        raise UserError(f"{path}: cost.candidates: expected an object of labels and numbers")
    budget = cost.get("budget")
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, NUMBER)):
        raise UserError(f"{path}: cost.budget: expected a number or null, got {budget!r}")
    verdict = content.get("verdict")
    if verdict is not None and (not isinstance(verdict, dict) or not isinstance(verdict.get("reasons", []), list)):
        raise UserError(f"{path}: verdict: expected an object with 'converged' and a list 'reasons'")
    labels = content["candidates"]
    costs = np.array([prices.get(label, np.nan) for label in labels], float)
    return Search(
        labels, steps, table, costs, str(cost.get("unit", "cost")), prices, budget, content.get("seed"), verdict
    )


def _array(value: Any, dimensions: int, where: str) -> np.ndarray:
    try:
        array = np.array(value, dtype=float)
    except (TypeError, ValueError):
        raise UserError(f"{where}: expected numbers in {dimensions} levels of lists of equal lengths") from None
    if array.ndim != dimensions or not np.isfinite(array).all():  # None reads as NaN
        raise UserError(f"{where}: expected numbers in {dimensions} levels of lists of equal lengths")
    return array


def _column(values: list[Any], where: str) -> np.ndarray:
    if all(value is None or (isinstance(value, NUMBER) and not isinstance(value, bool)) for value in values):
        return np.array([np.nan if value is None else value for value in values], float)
    if all(value is None or isinstance(value, str) for value in values):
        return np.array(["" if value is None else value for value in values], str)
    if any(isinstance(value, str) for value in values) and any(isinstance(value, NUMBER) for value in values):
        raise UserError(f"{where}: holds numbers in some lines and words in others")
    column = np.empty(len(values), object)
    column[:] = values
    return column


def read_object(path: Path) -> dict[str, Any] | None:
    """A JSON file that holds an object; None where there is no such file."""
    if not path.exists():
        return None
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected an object, got {type(content).__name__}")
    return content


def read_timings(path: Path) -> dict[str, float]:
    """timings.json's seconds of each stage; empty where there is no such file."""
    content = read_object(path) or {}
    for stage, seconds in content.items():
        if isinstance(seconds, bool) or not isinstance(seconds, NUMBER):
            raise UserError(f"{path}: {stage}: expected seconds, got {seconds!r}")
    return content


def read_config(path: Path) -> dict[str, Any]:
    """config.yaml's sections; empty where there is no such file."""
    if not path.exists():
        return {}
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected sections of settings")
    return content


def read_architectures(folder: Path) -> dict[str, dict[str, Any]]:
    """The folder's architecture files by name, best first, then in the order in which they are derived."""
    found = {}
    for path in folder.glob("*.json"):
        content = read_object(path) or {}
        layers = content.get("layers")
        if (
            not isinstance(layers, list)
            or not layers
            or not all(isinstance(one, dict) and "block" in one for one in layers)
        ):
            raise UserError(f"{path}: layers: expected a list of objects with a 'block'")
        try:
            _check_parts(content)
        except SettingError as error:
            raise UserError(f"{path}: {error}") from None
        found[path.stem] = content
    order = {name: place for place, name in enumerate(ARCHITECTURE_ORDER)}
    return dict(sorted(found.items(), key=lambda item: (order.get(item[0], len(order)), item[0])))


def _check_parts(content: dict[str, Any]) -> None:
    """The parts of an architecture file that pictures and page show; its blocks may be others than are registered
    here."""
    for key in ("name", "pattern"):
        if key in content:
            checks.check_text(content[key], key)
    for index, layer in enumerate(content["layers"]):
        checks.check_text(layer["block"], f"layers[{index}].block")
    checks.check_evidence(content.get("evidence", {}), len(content["layers"]))
    checks.check_cost(content.get("cost", {}))
    checks.check_provenance(content.get("provenance", {}))


def read_comparison(path: Path) -> list[dict[str, Any]]:
    """comparison.json's rows; empty where there is no such file."""
    if not path.exists():
        return []
    rows = read_json(path)
    if not isinstance(rows, list):
        raise UserError(f"{path}: expected a list of objects, one an architecture and seed")
    for index, row in enumerate(rows):
        if not isinstance(row, dict) or not isinstance(row.get("name"), str):
            raise UserError(f"{path}: [{index}]: expected an object with a 'name'")
        if not isinstance(row.get("pattern", ""), str):
            raise UserError(f"{path}: [{index}].pattern: expected text, got {row['pattern']!r}")
        for key in ("seed", "steps", *MEASURED):
            value = row.get(key)
            if value is not None and (isinstance(value, bool) or not isinstance(value, NUMBER)):
                raise UserError(f"{path}: [{index}].{key}: expected a number or null, got {value!r}")
    return rows


def read_sweep(path: Path) -> dict[str, Any] | None:
    """sweep/sweep.json with its points checked; None where there is no such file."""
    content = read_object(path)
    if content is None:
        return None
    points = content.get("points")
    for key, kind in (("baseline", dict), ("seeds", int)):
        if not isinstance(content.get(key, kind()), kind):
            raise UserError(
                f"{path}: {key}: expected {'an object' if kind is dict else 'an integer'}, got {content[key]!r}"
            )
    for index, point in enumerate(points if isinstance(points, list) else [None]):
        for key in ("cut", "ratio", "held_out_loss"):
            value = point.get(key) if isinstance(point, dict) else None
            if isinstance(value, bool) or not isinstance(value, NUMBER):
                raise UserError(f"{path}: points[{index}].{key}: expected a number, got {value!r}")
    return content


def read_retrained(folder: Path) -> dict[tuple[str, int], dict[str, np.ndarray]]:
    """The metrics of every `NAME/seed-K/` below the folder, by (NAME, K)."""
    found = {}
    for architecture in sorted(folder.iterdir()) if folder.is_dir() else []:
        for seed, sub in seed_folders(architecture) if architecture.is_dir() else []:
            found[architecture.name, seed] = read_metrics(sub / "metrics.jsonl")
    return found


def seed_folders(folder: Path) -> list[tuple[int, Path]]:
    """K and path of every `seed-K/` in the folder, by rising K."""
    numbered = [(sub.name.removeprefix("seed-"), sub) for sub in folder.glob("seed-*") if sub.is_dir()]
    return sorted((int(number), sub) for number, sub in numbered if number.isdecimal())
