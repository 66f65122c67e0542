"""The architecture: one record, its JSON file, read strictly and written the same way every time."""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from derive import file_checks as checks
from derive.patterns import INTERLEAVED, MAX_LAYERS, compress, expand
from derive.presets import find_preset, preset_pattern
from derive.rule_file import RuleFile
from derive.strict_json import read_json, write_json
from supernet.blocks import Candidate, candidate_cost, candidate_to_json, letters, parse_candidate
from supernet.costs import surroundings
from supernet.errors import SettingError, UserError
from supernet.settings import TASKS, ModelSettings, check_choice, check_int

FORMAT, VERSION = "par-architecture", 1
NEEDED = ("format", "version", "task", "model", "layers")
KEYS = ("format", "version", "name", "task", "model", "layers", "pattern", "evidence", "cost", "retrain", "provenance")

# Version -> function that turns a file's object of that version into one of the next; applied until VERSION is reached.
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


class ArchitectureError(UserError):
    """A wrong architecture file or record; `path` is the JSON path, such as `layers[2].rank`."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True)
class Architecture:
    """A layout with its widths, what it was derived from, what it costs and how to retrain it.

    Always valid: raises SettingError, naming the JSON path, when made of parts that do not fit. Layers count from 0.
    """

    name: str
    task: str
    model: ModelSettings
    layers: tuple[Candidate, ...]
    evidence: dict[str, Any] = field(default_factory=dict)
    cost: dict[str, Any] = field(default_factory=dict)
    retrain: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.check_name(self.name, "name")
        if not isinstance(self.model, ModelSettings):
            raise SettingError("model", f"expected ModelSettings, got {type(self.model).__name__}")
        check_choice(self.task, "task", TASKS)
        if self.task != self.model.task:
            raise SettingError("task", f"is {self.task!r}, but the model's settings are for {self.model.task!r}")
        if not 1 <= len(self.layers) <= MAX_LAYERS:
            raise SettingError("layers", f"expected 1 to {MAX_LAYERS} layers, got {len(self.layers)}")
        layers = tuple(parse_candidate(layer, self.model, f"layers[{i}]") for i, layer in enumerate(self.layers))
        object.__setattr__(self, "layers", layers)
        for key in ("evidence", "cost", "retrain", "provenance"):
            object.__setattr__(self, key, _plain(getattr(self, key), key))
        checks.check_evidence(self.evidence, len(layers))
        checks.check_cost(self.cost)
        checks.check_retrain(self.retrain)
        checks.check_provenance(self.provenance)

    @property
    def pattern(self) -> str:
        """One letter a layer, such as `sqfi`."""
        return "".join(layer.letter for layer in self.layers)

    def parameters(self) -> int:
        """How many numbers the built model trains, embedding and head included."""
        return surroundings(self.model)[0] + sum(cost for cost, _ in self._layer_costs(self.model.max_len))

    def flops_per_token(self, seq_len: int) -> int:
        """Forward FLOPs a token at segment length `seq_len`, layers and head, 2 a multiply-add, all T + memory_len
        keys."""
        return surroundings(self.model)[1] + self.layer_flops(seq_len)

    def layer_flops(self, seq_len: int) -> int:
        """Forward FLOPs a token of the layers alone."""
        check_int(seq_len, "seq_len", least=1)
        if seq_len > self.model.max_len:
            raise SettingError("seq_len", f"{seq_len} is more than max_len {self.model.max_len}")
        return sum(flops for _, flops in self._layer_costs(seq_len))

    def relative_flops(self, seq_len: int) -> float:
        """The layers' FLOPs over those of the interleaved baseline (sf)x(N/2) on the same widths."""
        pair = [candidate_cost(Candidate(block), self.model, seq_len)[1] for block in INTERLEAVED]
        return self.layer_flops(seq_len) / (len(self.layers) / 2 * sum(pair))

    def with_cost(self, seq_len: int, *, relative_latency: float | None = None) -> "Architecture":
        """A copy whose `cost` is filled in for segments of `seq_len` tokens."""
        relative = {"flops": round(self.relative_flops(seq_len), 6), "latency": relative_latency}
        cost = {"parameters": self.parameters(), "flops_per_token": self.flops_per_token(seq_len), "latency_ms": None}
        return dataclasses.replace(self, cost={**cost, "relative_to_interleaved": relative})

    @classmethod
    def from_pattern(
        cls, pattern: str, model: Mapping[str, Any] | ModelSettings | None = None, name: str | None = None
    ) -> "Architecture":
        """The blocks of a pattern at their default options; `model` as in a file, with "task" where it is not
        causal_lm.

        Raises SettingError naming the position in the pattern or the key of the model.
        """
        flat = expand(pattern)
        settings, layers = _model_settings(model)
        if layers is not None and layers != len(flat):
            raise SettingError("model.layers", f"is {layers}, but the pattern has {len(flat)} layers")
        known = letters()
        candidates = [parse_candidate(known[letter], settings, f"layers[{index}]") for index, letter in enumerate(flat)]
        return cls(_pattern_name(pattern, flat) if name is None else name, settings.task, settings, tuple(candidates))

    @classmethod
    def preset(
        cls,
        name: str,
        model: Mapping[str, Any] | ModelSettings | None = None,
        layers: int | None = None,
        *,
        cut: float | None = None,
        ratio: float | None = None,
    ) -> "Architecture":
        """A published layout, or `interleaved` or `par` on the widths of `model` with `layers` layers.

        Keys of a `model` mapping replace the preset's own. `cut` and `ratio` are for `par`. Raises SettingError for an
        unknown name, and for `layers` other than a published layout has.
        """
        preset = find_preset(name)
        settings, named = _model_settings(model, base={"task": preset.task, **preset.model})
        if layers is None:
            layers = named
        elif not 1 <= check_int(layers, "model.layers", least=1) <= MAX_LAYERS:
            raise SettingError("model.layers", f"expected 1 to {MAX_LAYERS}, got {layers}")
        flat = expand(preset_pattern(name, layers=layers, cut=cut, ratio=ratio))
        if layers is not None and layers != len(flat):
            raise SettingError("model.layers", f"preset {name!r} has {len(flat)} layers, not {layers}")
        return dataclasses.replace(cls.from_pattern(flat, settings), name=name)

    @classmethod
    def from_rule(
        cls,
        rule: "str | Path | Mapping[str, Any] | RuleFile",
        layers: int | None = None,
        model: Mapping[str, Any] | None = None,
    ) -> "Architecture":
        """The layout that a rule (a file, a parsed file or a RuleFile) makes at a depth, by default its own.

        Periods stay, borders and counts go with the depth (`Program.scaled`). The widths are those that the rule was
        found at, with the keys of `model` in their place. Raises ArchitectureError naming file and JSON path.
        """
        try:
            given = rule if isinstance(rule, RuleFile) else _read_rule(rule)
            settings, named = given.settings(model)
            depth = named if layers is None else layers
            blocks = given.candidates(settings, depth)
        except SettingError as error:
            raise ArchitectureError(error.path, str(error)) from None
        except UserError as error:
            raise ArchitectureError("", str(error)) from None
        kept = {key: value for key, value in given.provenance.items() if key not in ("model", "task")}
        name = "par-rule" if len(blocks) == given.program.layers else f"par-rule-{len(blocks)}"
        return cls(name, settings.task, settings, blocks, given.origin(len(blocks)), provenance=kept)

    @classmethod
    def load(cls, path: str | Path) -> "Architecture":
        """The architecture in a file. ArchitectureError (a ValueError) names the file and the JSON path of what is
        wrong."""
        try:
            return cls.from_json(read_json(path), name=_file_name(path))
        except ArchitectureError as error:
            raise ArchitectureError(error.path, f"{path}: {error}") from None
        except UserError as error:
            raise ArchitectureError("", str(error)) from None

    @classmethod
    def from_json(cls, value: Any, name: str = "architecture") -> "Architecture":
        """The architecture in a parsed file; `name` where the file has none. Raises ArchitectureError."""
        try:
            return _read(_migrate(value), name)
        except SettingError as error:
            raise ArchitectureError(error.path, str(error)) from None

    def to_json(self) -> dict[str, Any]:
        """The file's object; parts that are empty are left out."""
        value = {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "task": self.task,
            "model": self.model.to_mapping(),
            "layers": [candidate_to_json(layer, self.model) for layer in self.layers],
            "pattern": self.pattern,
        }
        for key in ("evidence", "cost", "retrain", "provenance"):
            if getattr(self, key):
                value[key] = _plain(getattr(self, key), key)
        return value

    def save(self, path: str | Path) -> None:
        """Write the file, atomically; equal architectures give equal bytes. UserError when it cannot be written."""
        try:
            write_json(path, self.to_json())
        except OSError as error:
            raise UserError(f"{path}: {error.strerror or error}") from None

    def _layer_costs(self, seq_len: int) -> list[tuple[int, int]]:
        costs = {layer: candidate_cost(layer, self.model, seq_len) for layer in set(self.layers)}
        return [costs[layer] for layer in self.layers]


def _read_rule(rule: "str | Path | Mapping[str, Any]") -> RuleFile:
    return RuleFile.from_json(rule) if isinstance(rule, Mapping) else RuleFile.load(rule)


def _migrate(value: Any) -> dict[str, Any]:
    """The object as one of this version. Raises SettingError for another format and for versions without a way here."""
    value = dict(checks.check_object(value, ""))
    if value.get("format") != FORMAT:
        raise SettingError("format", f"expected {FORMAT!r}, got {value.get('format')!r}")
    while True:
        version = value.get("version")
        if isinstance(version, bool) or not isinstance(version, int):
            raise SettingError("version", f"expected the integer {VERSION}, got {version!r}")
        if version == VERSION:
            return value
        if version not in MIGRATIONS:
            newer = "; a newer program wrote it" if version > VERSION else ""
            raise SettingError("version", f"expected {VERSION}, got {version}{newer}")
        value = {**MIGRATIONS[version](value), "version": version + 1}


def _read(value: dict[str, Any], name: str) -> Architecture:
    checks.check_object(value, "", KEYS)
    for key in NEEDED:
        if key not in value:
            raise SettingError(key, "is missing")
    settings = ModelSettings.from_mapping(value["model"], task=check_choice(value["task"], "task", TASKS))
    layers = checks.check_list(value["layers"], "layers")
    if not 1 <= len(layers) <= MAX_LAYERS:
        raise SettingError("layers", f"expected 1 to {MAX_LAYERS} layers, got {len(layers)}")
    for index, layer in enumerate(layers):
        checks.check_object(layer, f"layers[{index}]")
    parts = {key: checks.check_object(value[key], key) for key in KEYS[-4:] if key in value}
    architecture = Architecture(value.get("name", name), settings.task, settings, tuple(layers), **parts)
    if "pattern" in value:
        _check_pattern(value["pattern"], architecture.pattern)
    return architecture


def _check_pattern(given: Any, pattern: str) -> None:
    flat = expand(given)
    if flat != pattern:
        at = next((i for i in range(min(len(flat), len(pattern))) if flat[i] != pattern[i]), None)
        where = (
            f"has {len(flat)} layers, not {len(pattern)}"
            if at is None
            else f"layer {at} is {flat[at]!r}, not {pattern[at]!r}"
        )
        raise SettingError("pattern", f"disagrees with layers: {where}; right would be {compress(pattern)!r}")


def _model_settings(
    model: Mapping[str, Any] | ModelSettings | None, base: Mapping[str, Any] | None = None
) -> tuple[ModelSettings, int | None]:
    """Settings from a mapping like a file's "model", with "task" and "layers" where given, over `base`; and those
    layers."""
    if isinstance(model, ModelSettings):
        return model, None
    values = {**(base or {}), **({} if model is None else checks.check_object(model, "model"))}
    task = check_choice(values.pop("task", "causal_lm"), "task", TASKS)
    layers = values.pop("layers", None)
    if layers is not None and check_int(layers, "model.layers", least=1) > MAX_LAYERS:
        raise SettingError("model.layers", f"expected at most {MAX_LAYERS}, got {layers}")
    return ModelSettings.from_mapping(values, task=task), layers


def _pattern_name(pattern: str, flat: str) -> str:
    """The pattern as written, or compressed, or by its hash, whichever is the first that can name a folder."""
    for name in (pattern.strip(), compress(flat)):
        if checks.NAME.fullmatch(name):
            return name
    return f"pattern-{hashlib.sha256(flat.encode()).hexdigest()[:12]}"


def _file_name(path: str | Path) -> str:
    stem = Path(path).stem
    return stem if checks.NAME.fullmatch(stem) else "architecture"


def _plain(value: Any, path: str) -> Any:
    """A deep copy in JSON's own types: tuples and arrays as lists, numbers that are not finite as null."""
    if isinstance(value, Mapping):
        return {checks.check_text(key, path): _plain(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, str):
        return checks.check_text(value, path)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if hasattr(value, "tolist"):  # numpy's arrays and scalars, without importing numpy
        return _plain(value.tolist(), path)
    raise SettingError(path, f"expected something that JSON can hold, got {type(value).__name__}")
