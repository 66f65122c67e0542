"""A rule on disk: program, evidence and provenance; read strictly and written the same way each time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from derive import file_checks as checks
from derive.patterns import MAX_LAYERS
from derive.programs import ATTENTION, FORMS, MOST_CLAUSES, Clause, Program
from derive.strict_json import read_json, write_json
from supernet.blocks import BLOCKS, Candidate, parse_candidate
from supernet.errors import SettingError, UserError, did_you_mean
from supernet.settings import TASKS, ModelSettings, check_choice, check_int

FORMAT, VERSION = "par-rule", 1
NEEDED = ("format", "version", "program")
KEYS = (*NEEDED, "evidence", "provenance")
CLAUSE_KEYS = {
    "rest": ("clause", "holds", "layers", "blocks"),
    "every": ("clause", "holds", "period", "start", "end", "blocks"),
    "count": ("clause", "holds", "count", "start", "end", "at", "blocks"),
}


@dataclass(frozen=True)
class RuleFile:
    """A program with its evidence and provenance. Always valid: raises SettingError naming the JSON path otherwise."""

    program: Program
    evidence: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.check_evidence(self.evidence, self.program.layers)
        checks.check_provenance(self.provenance)
        _check_model(self.provenance)
        _read_program(_program_json(self.program))

    @property
    def sentence(self) -> str:
        """The program in words."""
        return self.program.sentence()

    def candidates(self, settings: ModelSettings, layers: int | None = None) -> tuple[Candidate, ...]:
        """The blocks of its layout at a depth, by default its own. SettingError names the clause of a label that does
        not fit the settings."""
        made = self.program if layers is None else self.program.scaled(_depth(layers))
        for at, clause in enumerate([made.rest, *made.clauses]):
            for label in clause.blocks or (clause.holds,):
                parse_candidate(label, settings, f"program[{at}].holds")
        return tuple(parse_candidate(label, settings, f"layers[{at}]") for at, label in enumerate(made.labels()))

    def origin(self, layers: int) -> dict[str, Any]:
        """The evidence of its layout at a depth: the program there, and the one that it comes from."""
        reason = f"From a rule of {self.program.layers} layers: {self.sentence}."
        value = self.program.scaled(layers).sentence()
        return {"rules": [{"rule": "program", "value": value, "supported": None, "reason": reason}]}

    def settings(self, model: Mapping[str, Any] | None = None) -> tuple[ModelSettings, int | None]:
        """The widths that it was found at, or the defaults, with keys of `model` in their place; and `model`'s
        layers."""
        own = dict(self.provenance.get("model", {}))
        values = {**own, **({} if model is None else checks.check_object(model, "model"))}
        task = values.pop("task", self.provenance.get("task", "causal_lm"))
        layers = values.pop("layers", None)
        return ModelSettings.from_mapping(values, task=task), layers

    @classmethod
    def load(cls, path: str | Path) -> "RuleFile":
        """The rule in a file; UserError names the file and the JSON path of what is wrong."""
        try:
            return cls.from_json(read_json(path))
        except SettingError as error:
            raise UserError(f"{path}: {error}") from None

    @classmethod
    def from_json(cls, value: Any) -> "RuleFile":
        """The rule in a parsed file. SettingError names the JSON path of what is wrong."""
        checks.check_object(value, "", KEYS)
        if value.get("format") != FORMAT:
            raise SettingError("format", f"expected {FORMAT!r}, got {value.get('format')!r}")
        version = value.get("version")
        if isinstance(version, bool) or version != VERSION:
            raise SettingError("version", f"expected {VERSION}, got {version!r}")
        if "program" not in value:
            raise SettingError("program", "is missing")
        parts = {key: dict(checks.check_object(value[key], key)) for key in KEYS[3:] if key in value}
        return cls(_read_program(value["program"]), **parts)

    def to_json(self) -> dict[str, Any]:
        """The file's object; parts that are empty are left out."""
        value = {"format": FORMAT, "version": VERSION, "program": _program_json(self.program)}
        parts = {"evidence": self.evidence, "provenance": self.provenance}
        return {**value, **{key: part for key, part in parts.items() if part}}

    def save(self, path: str | Path) -> None:
        """Write the file, atomically; equal rules give equal bytes. UserError when it cannot be written."""
        try:
            write_json(path, self.to_json())
        except OSError as error:
            raise UserError(f"{path}: {error.strerror or error}") from None


def _check_model(provenance: dict[str, Any]) -> None:
    """The widths that the rule was found at, where they are there."""
    if "task" in provenance:
        check_choice(provenance["task"], "provenance.task", TASKS)
    if "model" not in provenance:
        return
    model = checks.check_object(provenance["model"], "provenance.model")
    try:
        ModelSettings.from_mapping(model, task=provenance.get("task", "causal_lm"))
    except SettingError as error:
        raise SettingError(f"provenance.{error.path}", str(error).partition(": ")[2]) from None


def _check_label(label: Any, path: str) -> str:
    """A label whose block is known; whether its options fit is seen where there are widths."""
    block = checks.check_text(label, path).split("[")[0]
    if block not in BLOCKS:
        raise SettingError(path, f"unknown block {block!r}{did_you_mean(block, BLOCKS)}")
    return str(label)


def _program_json(program: Program) -> list[dict[str, Any]]:
    return [_clause_json(clause, program.layers) for clause in (program.rest, *program.clauses)]


def _clause_json(clause: Clause, layers: int) -> dict[str, Any]:
    values = {
        "clause": clause.form,
        "holds": clause.holds,
        "layers": layers,
        "period": clause.period,
        "count": clause.count,
        "start": clause.start,
        "end": clause.end,
        "at": list(clause.at),
        "blocks": list(clause.blocks),
    }
    return {key: values[key] for key in CLAUSE_KEYS[clause.form] if values[key] != []}


def _read_program(value: Any) -> Program:
    clauses = checks.check_list(value, "program")
    if not 1 <= len(clauses) <= 1 + MOST_CLAUSES:
        raise SettingError("program", f"expected a rest and at most {MOST_CLAUSES} clauses, got {len(clauses)} entries")
    rest = checks.check_object(clauses[0], "program[0]")
    if rest.get("clause") != "rest":
        raise SettingError("program[0].clause", f"expected 'rest', got {rest.get('clause')!r}")
    layers = _depth(rest.get("layers"), "program[0].layers")
    read = [_read_clause(clause, layers, f"program[{at}]") for at, clause in enumerate(clauses)]
    return Program(layers, read[0], tuple(read[1:]))


def _read_clause(value: Any, layers: int, path: str) -> Clause:
    clause = checks.check_object(value, path)
    form = check_choice(clause.get("clause"), f"{path}.clause", FORMS)
    if (form == "rest") != (path == "program[0]"):
        raise SettingError(f"{path}.clause", "the rest stands first, and once")
    checks.check_object(clause, path, CLAUSE_KEYS[form])
    holds = checks.check_text(clause.get("holds"), f"{path}.holds")
    if holds != ATTENTION:
        _check_label(holds, f"{path}.holds")
    blocks = tuple(
        _check_label(label, f"{path}.blocks[{at}]")
        for at, label in enumerate(checks.check_list(clause.get("blocks", []), f"{path}.blocks"))
    )
    if blocks and holds != ATTENTION:
        raise SettingError(f"{path}.blocks", f"goes with holds {ATTENTION!r} only")
    if holds == ATTENTION and not blocks:
        raise SettingError(f"{path}.blocks", f"is missing: {ATTENTION!r} needs the label of each layer held")
    made = Clause(form, holds, blocks=blocks) if form == "rest" else _read_borders(clause, layers, path, blocks)
    held = layers if form == "rest" else len(made.held())
    if blocks and len(blocks) != held:
        raise SettingError(f"{path}.blocks", f"has {len(blocks)} labels, but {held} layers are held")
    return made


def _read_borders(clause: Mapping[str, Any], layers: int, path: str, blocks: tuple[str, ...]) -> Clause:
    """An `every` or a `count`, its numbers checked against each other and the depth."""
    start = check_int(clause.get("start"), f"{path}.start", least=0)
    end = check_int(clause.get("end"), f"{path}.end", least=1)
    if start >= layers:
        raise SettingError(f"{path}.start", f"expected a layer from 0 to {layers - 1}, got {start}")
    if not start < end <= layers:
        raise SettingError(f"{path}.end", f"expected {start + 1} to {layers}, got {end}")
    form, holds = clause["clause"], clause["holds"]
    if form == "every":
        period = check_int(clause.get("period"), f"{path}.period", least=1)
        if period > layers:
            raise SettingError(f"{path}.period", f"expected 1 to {layers}, got {period}")
        return Clause(form, holds, start, end, period, blocks=blocks)
    count = check_int(clause.get("count"), f"{path}.count", least=1)
    if count > end - start:
        raise SettingError(f"{path}.count", f"expected at most the {end - start} layers from {start} to {end - 1}")
    at = tuple(
        check_int(layer, f"{path}.at[{index}]", least=0)
        for index, layer in enumerate(checks.check_list(clause.get("at", []), f"{path}.at"))
    )
    rising = all(start <= layer < end for layer in at) and list(at) == sorted(set(at))
    if at and not (rising and len(at) == count):
        raise SettingError(f"{path}.at", f"expected {count} rising layers from {start} to {end - 1}, got {list(at)}")
    return Clause(form, holds, start, end, count=count, at=at, blocks=blocks)


def _depth(value: Any, path: str = "layers") -> int:
    if check_int(value, path, least=1) > MAX_LAYERS:
        raise SettingError(path, f"expected at most {MAX_LAYERS} layers, got {value}")
    return int(value)
