"""What a search left behind, read from its run folder without trusting any of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from derive import file_checks as checks
from derive.strict_json import read_json
from supernet.blocks import Candidate, parse_candidate
from supernet.errors import SettingError, UserError
from supernet.settings import ModelSettings, check_int

UNITS = ("flops_per_token", "parameters", "ms")
ROW_SUM_TOLERANCE = 1e-3


@dataclass(frozen=True)
class SeedEvidence:
    """One seed's record: `tail` [K, N, C] are the last quarter of the recorded probabilities, at least one entry.

    `scored` are layouts that the search has scored with inherited weights, a label a layer, the best first.
    """

    labels: list[str]
    tail: np.ndarray
    step: int
    seed: int
    unit: str
    costs: dict[str, float]
    budget: float | None
    verdict: dict[str, Any]
    versions: dict[str, str]
    scored: list[list[str]] = field(default_factory=list)


@dataclass(frozen=True)
class RunEvidence:
    """All seeds of a run with the model's settings; labels and costs are the first seed's, tables in that order."""

    name: str
    config: dict[str, Any]
    data: dict[str, Any]
    settings: ModelSettings
    candidates: list[Candidate]
    seeds: list[SeedEvidence]

    @property
    def labels(self) -> list[str]:
        """Candidates' labels, in the order of the tables' last axis."""
        return self.seeds[0].labels

    def selected(self, selection: str) -> np.ndarray:
        """Probabilities [N, C]: each seed's last entry, or its average over the last quarter, averaged over the
        seeds."""
        if selection not in ("last", "average"):
            raise SettingError("derive.selection", f"expected last or average, got {selection!r}")
        tables = [seed.tail[-1] if selection == "last" else seed.tail.mean(axis=0) for seed in self.seeds]
        mean = np.mean(tables, axis=0)
        return mean / mean.sum(axis=1, keepdims=True)

    def verdict(self) -> dict[str, Any]:
        """Converged when every seed has; reasons of several seeds say whose they are."""
        several = len(self.seeds) > 1
        reasons = [f"seed {s.seed}: {text}" if several else text for s in self.seeds for text in s.verdict["reasons"]]
        return {"converged": all(seed.verdict["converged"] for seed in self.seeds), "reasons": reasons}

    def section(self, name: str) -> dict[str, Any]:
        """A section of config.yaml; empty where it is not there."""
        return self.config.get(name) or {}


def read_run(folder: str | Path) -> RunEvidence:
    """The evidence of a run folder, or of a parent with `seed-K/` folders. UserError names the file and key that is
    wrong."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such run folder")
    config = _read_config(folder / "config.yaml")
    homes = [folder] if (folder / "probabilities.json").exists() else _seed_folders(folder)
    data = _read_data(homes[0] / "data.json")
    for home in homes[1:]:
        if _read_data(home / "data.json").get("sha256") != data.get("sha256"):
            raise UserError(
                f"{home / 'data.json'}: other data than {homes[0] / 'data.json'}; seeds can be combined only on "
                "the same"
            )
    settings = _model_settings(config, data, folder / "config.yaml")
    seeds = [_read_seed(home / "probabilities.json") for home in homes]
    seeds = [
        seeds[0],
        *(
            _in_order_of(seeds[0], seed, home / "probabilities.json")
            for seed, home in zip(seeds[1:], homes[1:], strict=True)
        ),
    ]
    layers = config.get("model", {}).get("layers")
    if layers is not None and layers != seeds[0].tail.shape[1]:
        raise UserError(
            f"{folder / 'config.yaml'}: model.layers: is {layers!r}, but there are probabilities of "
            f"{seeds[0].tail.shape[1]}"
        )
    where = f"{homes[0] / 'probabilities.json'}: candidates"
    candidates = [parse_candidate(label, settings, f"{where}[{index}]") for index, label in enumerate(seeds[0].labels)]
    if len(set(candidates)) != len(candidates):
        raise UserError(f"{where}: two labels mean the same candidate")
    name = folder.resolve().name.encode("utf-8", "replace").decode("utf-8")  # a folder's name may be any bytes
    return RunEvidence(name, config, data, settings, candidates, seeds)


def number(value: Any) -> Any:
    """A number written as text, as PyYAML reads `3e-4`, as that number; anything else as it is."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _seed_folders(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("seed-*") if path.is_dir() and path.name[5:].isdecimal()]
    if not found:
        raise UserError(f"{folder}: has neither probabilities.json nor seed-K folders, so nothing to derive from")
    return sorted(found, key=lambda path: int(path.name[5:]))


def _read_config(path: Path) -> dict[str, Any]:
    from derive.yaml_file import read_yaml  # PyYAML is loaded only where there is a file to read

    config = read_yaml(path)
    try:
        for name, section in checks.check_object(config, "").items():
            if section is not None:
                checks.check_object(section, str(name))
    except SettingError as error:
        raise UserError(f"{path}: {error}") from None
    return dict(config)


def _read_data(path: Path) -> dict[str, Any]:
    try:
        data = checks.check_object(read_json(path), "")
        check_int(data.get("vocab_size"), "vocab_size", least=1)
        for key in ("name", "sha256"):
            checks.check_text(data.get(key), key)
    except SettingError as error:
        raise UserError(f"{path}: {error}") from None
    return dict(data)


def _model_settings(config: dict[str, Any], data: dict[str, Any], path: Path) -> ModelSettings:
    model = {key: value for key, value in (config.get("model") or {}).items() if value is not None}
    model.setdefault("max_len", (config.get("data") or {}).get("seq_len", ModelSettings.max_len))
    model["vocab_size"] = data["vocab_size"]
    model.pop("layers", None)
    task = model.pop("task", "causal_lm")
    if "dropout" in model:
        model["dropout"] = number(model["dropout"])
    try:
        return ModelSettings.from_mapping(model, task=task)
    except SettingError as error:
        raise UserError(f"{path}: {error}") from None


def _read_seed(path: Path) -> SeedEvidence:
    try:
        value = checks.check_object(read_json(path), "")
        labels = [
            checks.check_text(label, f"candidates[{i}]") for i, label in enumerate(_needed_list(value, "candidates"))
        ]
        if len(set(labels)) != len(labels) or not labels:
            raise SettingError("candidates", "expected at least one label, none twice")
        steps = [check_int(step, f"steps[{index}]", least=0) for index, step in enumerate(_needed_list(value, "steps"))]
        tail = _read_tail(_needed_list(value, "probabilities"), len(steps), len(labels))
        unit, costs, budget = _read_cost(value.get("cost"), labels)
        seed = check_int(value.get("seed", 0), "seed", least=0)
        verdict, versions = _read_verdict(value.get("verdict")), _read_versions(value.get("versions", {}))
        scored = _read_scored(path.with_name("layouts.json"), labels, tail.shape[1])
        return SeedEvidence(labels, tail, steps[-1], seed, unit, costs, budget, verdict, versions, scored)
    except SettingError as error:
        raise UserError(f"{path}: {error}") from None


def _read_scored(path: Path, labels: list[str], layers: int) -> list[list[str]]:
    """The layouts of `layouts.json`, the best first; none where the file is not there."""
    if not path.exists():
        return []
    scored = []
    try:
        for at, entry in enumerate(_needed_list(checks.check_object(read_json(path), ""), "layouts")):
            layout = checks.check_list(
                checks.check_object(entry, f"layouts[{at}]").get("layers"), f"layouts[{at}].layers"
            )
            if len(layout) != layers or not all(label in labels for label in layout):
                raise SettingError(f"layouts[{at}].layers", f"expected {layers} of the candidates' labels")
            loss = checks.check_number(entry.get("loss"), f"layouts[{at}].loss")
            scored.append((loss, layout))
    except SettingError as error:
        raise UserError(f"{path}: {error}") from None
    return [layout for _, layout in sorted(scored)]


def _read_tail(entries: list[Any], steps: int, candidates: int) -> np.ndarray:
    """The last quarter of the entries, checked, as [K, N, C]."""
    if not entries or len(entries) != steps:
        raise SettingError(
            "probabilities", f"expected one entry a recorded step, of which there are {steps}; got {len(entries)}"
        )
    first = len(entries) - max(1, len(entries) // 4)
    tables = []
    for at, entry in enumerate(entries[first:], start=first):
        path = f"probabilities[{at}]"
        for layer, row in enumerate(checks.check_list(entry, path)):
            where = f"{path}[{layer}]"
            if len(checks.check_list(row, where)) != candidates:
                raise SettingError(where, f"has {len(row)} numbers, but there are {candidates} candidates")
            for column, entry_value in enumerate(row):
                checks.check_number(entry_value, f"{where}[{column}]")
            if abs(sum(row) - 1) > ROW_SUM_TOLERANCE:
                raise SettingError(where, f"sums to {sum(row):.6g}, not 1")
        if not entry or len(entry) != len(entries[first]):
            raise SettingError(
                path, f"has {len(entry)} layers, unlike the {len(entries[first])} of probabilities[{first}]"
            )
        tables.append(entry)
    return np.asarray(tables, dtype=np.float64)


def _read_cost(value: Any, labels: list[str]) -> tuple[str, dict[str, float], float | None]:
    cost = checks.check_object(value, "cost")
    unit = cost.get("unit")
    if unit not in UNITS:
        raise SettingError("cost.unit", f"expected one of {', '.join(UNITS)}, got {unit!r}")
    costs = dict(checks.check_object(cost.get("candidates"), "cost.candidates"))
    for label in labels:
        if label not in costs:
            raise SettingError("cost.candidates", f"has no {label!r}")
    for label, price in costs.items():
        checks.check_number(price, checks.join("cost.candidates", label))
    budget = checks.check_number_or_null(cost.get("budget"), "cost.budget")
    return unit, costs, budget


def _read_verdict(value: Any) -> dict[str, Any]:
    if value is None:
        return {"converged": False, "reasons": ["the search recorded no verdict"]}
    verdict = checks.check_object(value, "verdict")
    checks.check_bool(verdict.get("converged"), "verdict.converged")
    reasons = checks.check_list(verdict.get("reasons", []), "verdict.reasons")
    return {
        "converged": verdict["converged"],
        "reasons": [checks.check_text(text, f"verdict.reasons[{index}]") for index, text in enumerate(reasons)],
    }


def _read_versions(value: Any) -> dict[str, str]:
    versions = checks.check_object(value, "versions")
    return {name: checks.check_text(version, f"versions.{name}") for name, version in versions.items()}


def _needed_list(value: Mapping[str, Any], key: str) -> list[Any]:
    return checks.check_list(value.get(key), key)


def _in_order_of(first: SeedEvidence, other: SeedEvidence, path: Path) -> SeedEvidence:
    """`other` with its candidates in the order of `first`; UserError where the two cannot be combined."""
    if set(other.labels) != set(first.labels) or other.tail.shape[1] != first.tail.shape[1] or other.unit != first.unit:
        raise UserError(
            f"{path}: other candidates, layers or cost unit than the first seed's; such seeds cannot be combined"
        )
    order = [other.labels.index(label) for label in first.labels]
    values = {**other.__dict__, "labels": first.labels, "tail": other.tail[:, :, order]}
    return SeedEvidence(**values)
