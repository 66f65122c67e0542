"""Rule files: written and read back the same, refused with the JSON path when wrong, and laid out at any depth."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from test_derivation import CONFIG, LABELS, table, write_seed

from derive import Architecture, ArchitectureError, RuleFile, derive_architectures, derive_rule
from derive.programs import Clause, Program
from supernet.errors import UserError

SCHEMA = json.loads((Path(__file__).parents[3] / "derive" / "rule.schema.json").read_text(encoding="utf-8"))
REST = {"clause": "rest", "holds": "feed_forward", "layers": 32}
EVERY = {"clause": "every", "holds": "self_attention", "period": 4, "start": 0, "end": 24}
COUNT = {"clause": "count", "holds": "self_attention", "count": 2, "start": 0, "end": 8}


def file(*clauses: Any, **parts: Any) -> dict[str, Any]:
    return {"format": "par-rule", "version": 1, "program": list(clauses or (REST, EVERY)), **parts}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_seed(tmp_path / "my-run")
    return tmp_path / "my-run"


def test_the_rule_of_a_run_is_the_program_of_its_par_rule(run: Path, tmp_path: Path) -> None:
    before = sorted(path.name for path in run.iterdir())
    rule, derived = derive_rule(run), derive_architectures(run)["par-rule"]
    assert sorted(path.name for path in run.iterdir()) == before  # writes nothing
    rule.save(tmp_path / "rule.json")
    text = (tmp_path / "rule.json").read_text(encoding="utf-8")
    assert str(tmp_path) not in text
    jsonschema.validate(json.loads(text), SCHEMA)
    assert RuleFile.load(tmp_path / "rule.json").to_json() == rule.to_json()
    assert rule.evidence["rules"] == derived.evidence["rules"]
    assert rule.provenance["selection"] == "last" and rule.provenance["run"] == "my-run"
    made = Architecture.from_rule(tmp_path / "rule.json")
    assert (made.layers, made.model, made.task) == (derived.layers, derived.model, derived.task)
    deeper = Architecture.from_rule(tmp_path / "rule.json", layers=48)
    assert (deeper.pattern, deeper.name) == ("s" * 16 + "f" * 32, "par-rule-48")
    deeper.save(tmp_path / "deeper.json")
    assert Architecture.load(tmp_path / "deeper.json") == deeper


def test_forced_values_reach_the_rule(run: Path) -> None:
    rule = derive_rule(run, cut=2 / 3, ratio=5)
    assert Architecture.from_rule(rule).pattern == "sfff" + "sfffffff" == rule_pattern(run, cut=2 / 3, ratio=5)
    assert derive_rule(run, selection="average").provenance["selection"] == "average"


def rule_pattern(run: Path, **forced: float) -> str:
    return derive_architectures(run, **forced)["par-rule"].pattern


def test_rules_of_several_seeds_and_labels_with_options(tmp_path: Path) -> None:
    parent = tmp_path / "many"
    for seed in (1, 2):
        write_seed(parent / f"seed-{seed}", seed, probabilities=table(rng_seed=seed)[:, :, [0, 3, 2, 1]])
    (parent / "config.yaml").write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    rule = derive_rule(parent)
    assert rule.program.clauses[0].holds == LABELS[3] and rule.provenance["seeds"] == [1, 2]
    assert Architecture.from_rule(rule, layers=6).pattern == "rrffff"


def test_the_papers_rule_at_its_depths() -> None:
    base = file()
    assert Architecture.from_rule(base).pattern == "sfff" * 6 + "f" * 8
    assert Architecture.from_rule(base, layers=48).pattern == "sfff" * 9 + "f" * 12
    assert Architecture.from_rule(base, layers=24).pattern == "sfff" * 5 + "f" * 4
    wide = Architecture.from_rule(base, layers=8, model={"d_model": 60, "heads": 5, "task": "masked_lm"})
    assert (wide.pattern, wide.model.d_model, wide.task) == ("sfffsfff"[:6] + "ff", 60, "masked_lm")
    assert Architecture.from_rule(base, model={"layers": 16}).pattern == "sfff" * 3 + "f" * 4


def test_a_rule_written_by_hand_needs_little(tmp_path: Path) -> None:
    given = file({**REST, "layers": 8}, COUNT, {**EVERY, "holds": "identity", "start": 6, "period": 1, "end": 8})
    jsonschema.validate(given, SCHEMA)
    assert Architecture.from_rule(given).pattern == "ffsfffii"  # the later clause holds layer 6
    (tmp_path / "rule.json").write_text(json.dumps(given), encoding="utf-8")
    RuleFile.load(tmp_path / "rule.json").save(tmp_path / "again.json")
    again = json.loads((tmp_path / "again.json").read_text(encoding="utf-8"))
    assert again["program"] == given["program"]
    kinds = {**EVERY, "holds": "attention", "end": 8, "blocks": ["random_synthesizer", "self_attention"]}
    assert Architecture.from_rule(file(REST, kinds)).pattern == "rfffs" + "f" * 27


WRONG = [
    ([1], "file: expected an object"),
    ({**file(), "format": "par-architecture"}, "format: expected 'par-rule'"),
    ({**file(), "version": 2}, "version: expected 1"),
    ({**file(), "version": True}, "version: expected 1"),
    ({"format": "par-rule", "version": 1}, "program: is missing"),
    ({**file(), "rule": 1}, "rule: unknown key"),
    ({**file(), "program": "sfff"}, "program: expected a list"),
    ({**file(), "program": []}, "program: expected a rest"),
    (file(REST, *[EVERY] * 4), "program: expected a rest and at most 3 clauses"),
    (file(EVERY), "program[0].clause: expected 'rest'"),
    (file(REST, REST), "program[1].clause: the rest stands first"),
    (file(3), "program[0]: expected an object"),
    (file({**REST, "layers": 0}), "program[0].layers"),
    (file({**REST, "layers": 5000}), "program[0].layers: expected at most 4096"),
    (file({**REST, "period": 2}), "program[0].period: unknown key"),
    (file({**REST, "holds": "feed_foward"}), "program[0].holds: unknown block 'feed_foward' (did you mean"),
    (file({**REST, "holds": 3}), "program[0].holds: expected text"),
    (file(REST, {**EVERY, "clause": "each"}), "program[1].clause"),
    (file(REST, {**EVERY, "count": 2}), "program[1].count: unknown key"),
    (file(REST, {**EVERY, "period": 0}), "program[1].period"),
    (file(REST, {**EVERY, "period": 33}), "program[1].period: expected 1 to 32"),
    (file(REST, {**EVERY, "start": 32, "end": 33}), "program[1].start"),
    (file(REST, {**EVERY, "end": 33}), "program[1].end: expected 1 to 32"),
    (file(REST, {**EVERY, "end": 4.0}), "program[1].end"),
    (file(REST, {**EVERY, "start": None}), "program[1].start"),
    (file(REST, {**EVERY, "holds": "attention"}), "program[1].blocks: is missing"),
    (file(REST, {**EVERY, "blocks": ["self_attention"]}), "program[1].blocks: goes with holds 'attention'"),
    (file(REST, {**EVERY, "holds": "attention", "blocks": ["self_attention"]}), "program[1].blocks: has 1 labels"),
    (file(REST, {**COUNT, "count": 9}), "program[1].count: expected at most the 8 layers"),
    (file(REST, {**COUNT, "at": [3, 1]}), "program[1].at: expected 2 rising layers"),
    (file(REST, {**COUNT, "at": [1]}), "program[1].at: expected 2 rising layers"),
    (file(REST, {**COUNT, "at": [1, 8]}), "program[1].at: expected 2 rising layers"),
    (file(evidence={"probabilities": [[1.0]]}), "evidence.probabilities"),
    (file(evidence={"rules": [{}]}), "evidence.rules[0]: has no 'rule'"),
    (file(evidence=3), "evidence: expected an object"),
    (file(provenance={"seed": -1}), "provenance.seed"),
    (file(provenance={"model": {"heads": 3}}), "provenance.model.heads"),
    (file(provenance={"task": "sing"}), "provenance.task"),
]


@pytest.mark.parametrize(("value", "words"), WRONG)
def test_wrong_files_are_refused_with_the_path(value: Any, words: str, tmp_path: Path) -> None:
    (tmp_path / "rule.json").write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        RuleFile.load(tmp_path / "rule.json")
    assert words in str(caught.value) and str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(ArchitectureError):
        Architecture.from_rule(tmp_path / "rule.json")


@pytest.mark.parametrize(
    "text", ["", "{", '{"format": NaN}', '{"format": "par-rule", "format": "par-rule"}', '{"version": 1e999}']
)
def test_what_is_not_strict_json_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "rule.json").write_text(text, encoding="utf-8")
    with pytest.raises(ArchitectureError, match=r"rule\.json"):
        Architecture.from_rule(tmp_path / "rule.json")
    with pytest.raises(ArchitectureError, match=r"none\.json"):
        Architecture.from_rule(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"layers": 0}, "layers"),
        ({"layers": 2.5}, "layers"),
        ({"layers": 10**9}, "layers"),
        ({"model": {"heads": 3}}, "heads"),
        ({"model": 5}, "model: expected an object"),
    ],
)
def test_wrong_depths_and_widths_are_refused(arguments: dict, words: str) -> None:
    with pytest.raises(ArchitectureError) as caught:
        Architecture.from_rule(file(), **arguments)
    assert words in str(caught.value)


def test_a_record_is_checked_too() -> None:
    with pytest.raises(UserError, match=r"program\[1\]\.end"):
        RuleFile(Program(8, Clause("rest", "feed_forward"), (Clause("every", "self_attention", 0, 9),)))


def test_the_schema_refuses_what_the_reader_refuses() -> None:
    """All of the wrong files that the schema can express: forms, keys, kinds of values."""
    validator = jsonschema.Draft202012Validator(SCHEMA)
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    beyond = (
        "period: expected 1 to",
        "].start",
        "end: expected 1 to",
        "has 1 labels",
        "count: expected at most",
        "rising",
        "evidence.probabilities",
        "unknown block",
        "provenance.model",
        "].end",
    )
    for value, words in WRONG:
        assert any(part in words for part in beyond) or not validator.is_valid(value), words
