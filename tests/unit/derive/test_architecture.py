"""The architecture file: strict in, identical out, and a schema that agrees."""

import copy
import dataclasses
import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import derive.architecture as architecture_module
from derive import Architecture, ArchitectureError
from supernet.blocks import BLOCKS, Candidate, default_options
from supernet.errors import SettingError
from supernet.settings import NORMS, POSITIONS, TASKS, ModelSettings

SCHEMA = json.loads(
    (Path(architecture_module.__file__).parent / "architecture.schema.json").read_text(encoding="utf-8")
)

FULL = {
    "format": "par-architecture",
    "version": 1,
    "name": "par-rule",
    "task": "causal_lm",
    "model": {
        "vocab_size": 256,
        "d_model": 128,
        "heads": 4,
        "d_inner": 512,
        "max_len": 128,
        "memory_len": 0,
        "dropout": 0.1,
        "norm": "pre",
        "position": "learned",
        "tie_embeddings": True,
    },
    "layers": [
        {"block": "self_attention"},
        {"block": "factorized_random_synthesizer", "rank": 8},
        {"block": "feed_forward"},
        {"block": "identity"},
    ],
    "pattern": "sqfi",
    "evidence": {
        "candidates": ["self_attention", "feed_forward"],
        "probabilities": [[0.7, 0.3], [0.5, 0.5], [0, 1], [1, 0]],
        "rules": [{"rule": "cut", "value": 0.667, "reason": "Because.", "supported": False, "figures": [1, 2]}],
        "verdict": {"converged": True, "reasons": []},
        "overruled": [{"layer": 2, "preferred": "identity", "chosen": "feed_forward", "rule": "rest"}],
    },
    "cost": {
        "parameters": 0,
        "flops_per_token": 0,
        "latency_ms": None,
        "relative_to_interleaved": {"flops": 0.6, "latency": None},
    },
    "retrain": {"steps": 0, "lr": 0.0, "batch_size": 0, "seq_len": 0},
    "provenance": {
        "run": "name",
        "seed": 0,
        "step": 0,
        "selection": "last",
        "data": {"name": "sotu", "sha256": "ab"},
        "versions": {},
        "extra": {"kept": [1]},
    },
}
SMALL = {
    "format": "par-architecture",
    "version": 1,
    "task": "causal_lm",
    "model": {},
    "layers": [{"block": "feed_forward"}],
}

GOOD = [
    {},
    {"model": {"memory_len": 5, "position": "relative"}},
    {"model": {"memory_len": 5, "position": "none"}},
    {"model": {"cutoffs": [10, 20]}},
    {"task": "masked_lm", "model": {"memory_len": 0}},
    {
        "layers": [
            {"block": "mixture_synthesizer", "parts": ["random", "dense"]},
            {"block": "self_attention", "heads": 2},
        ]
    },
    {"layers": [{"block": "factorized_dense_synthesizer", "a": 2, "b": 64}]},
    {"layers": [{"block": "fixed_random_synthesizer", "seed": 0}], "pattern": "x"},
    {"layers": [{"block": "feed_forward"}] * 6, "pattern": "(f)x6"},
    {"provenance": {"anything": [1, {"else": None}], "seed": None}},
    {"evidence": {"more": 1}},
    {"name": "(sf)x3 é"},
    {"evidence": {}, "cost": {}, "retrain": {}, "provenance": {}},
]

# (what replaces keys of SMALL, the JSON path that the error names, whether the schema can tell)
BAD = [
    ({"format": "other"}, "format", True),
    ({"version": 2}, "version", True),
    ({"version": 0}, "version", True),
    ({"version": True}, "version", False),  # JSON Schema's const 1 takes true in some validators
    ({"version": "1"}, "version", True),
    ({"extra": 1}, "extra", True),
    ({"task": "translating"}, "task", True),
    ({"task": None}, "task", True),
    ({"task": ["causal_lm"]}, "task", True),
    ({"model": []}, "model", True),
    ({"model": None}, "model", True),
    ({"model": {"width": 5}}, "model.width", True),
    ({"model": {"task": "causal_lm"}}, "model.task", True),
    ({"model": {"layers": 1}}, "model.layers", True),
    ({"model": {"heads": 3}}, "model.heads", False),
    ({"model": {"heads": 0}}, "model.heads", True),
    ({"model": {"heads": True}}, "model.heads", True),
    ({"model": {"heads": "4"}}, "model.heads", True),
    ({"model": {"heads": 4.0}}, "model.heads", False),  # JSON Schema counts 4.0 as an integer
    ({"model": {"d_model": 2**31}}, "model.d_model", True),
    ({"model": {"max_len": -1}}, "model.max_len", True),
    ({"model": {"dropout": 1}}, "model.dropout", True),
    ({"model": {"dropout": "0.1"}}, "model.dropout", True),
    ({"model": {"tie_embeddings": 1}}, "model.tie_embeddings", True),
    ({"model": {"norm": "middle"}}, "model.norm", True),
    ({"model": {"position": "absolute"}}, "model.position", True),
    ({"model": {"memory_len": 5}}, "model.memory_len", True),
    ({"model": {"memory_len": 5, "position": "learned"}}, "model.memory_len", True),
    ({"task": "masked_lm", "model": {"memory_len": 5, "position": "none"}}, "model.memory_len", True),
    ({"model": {"position": "sinusoidal", "d_model": 15, "heads": 5}}, "model.d_model", True),
    ({"model": {"cutoffs": [20, 10]}}, "model.cutoffs", False),
    ({"model": {"cutoffs": [256]}}, "model.cutoffs", False),
    ({"model": {"cutoffs": 5}}, "model.cutoffs", True),
    ({"layers": []}, "layers", True),
    ({"layers": {}}, "layers", True),
    ({"layers": None}, "layers", True),
    ({"layers": [{"block": "identity"}] * 4097}, "layers", True),
    ({"layers": ["feed_forward"]}, "layers[0]", True),
    ({"layers": [{"block": "identity"}, {}]}, "layers[1]", True),
    ({"layers": [{"block": "identity"}, {"block": "selfattention"}]}, "layers[1].block", True),
    ({"layers": [{"block": ["identity"]}]}, "layers[0].block", True),
    ({"layers": [{"block": "identity", "heads": 2}]}, "layers[0].heads", True),
    (
        {"layers": [{"block": "identity"}] * 2 + [{"block": "factorized_random_synthesizer", "rank": 0}]},
        "layers[2].rank",
        True,
    ),
    ({"layers": [{"block": "factorized_random_synthesizer", "rank": 1.5}]}, "layers[0].rank", True),
    ({"layers": [{"block": "self_attention", "heads": 5}]}, "layers[0].heads", False),
    ({"layers": [{"block": "factorized_dense_synthesizer", "a": 3, "b": 5}]}, "layers[0].a", False),
    ({"layers": [{"block": "mixture_synthesizer", "parts": ["random"]}]}, "layers[0].parts", True),
    ({"layers": [{"block": "mixture_synthesizer", "parts": ["random", "random"]}]}, "layers[0].parts", True),
    ({"layers": [{"block": "mixture_synthesizer", "parts": ["random", "sparse"]}]}, "layers[0].parts", True),
    ({"pattern": "s"}, "pattern", False),
    ({"pattern": "ff"}, "pattern", False),
    ({"pattern": ""}, "pattern", True),
    ({"pattern": 5}, "pattern", True),
    ({"pattern": "(f"}, "pattern", False),
    ({"name": ""}, "name", True),
    ({"name": "../up"}, "name", True),
    ({"name": "a/b"}, "name", True),
    ({"name": "line\n"}, "name", True),
    ({"name": None}, "name", True),
    ({"name": "n" * 121}, "name", True),
    ({"evidence": []}, "evidence", True),
    ({"evidence": {"candidates": [1]}}, "evidence.candidates[0]", True),
    ({"evidence": {"candidates": ["a"], "probabilities": [[0.5], [0.5]]}}, "evidence.probabilities", False),
    ({"evidence": {"candidates": ["a"], "probabilities": [[0.5, 0.5]]}}, "evidence.probabilities[0]", False),
    ({"evidence": {"candidates": ["a"], "probabilities": [[1.5]]}}, "evidence.probabilities[0][0]", True),
    ({"evidence": {"candidates": ["a"], "probabilities": [["1"]]}}, "evidence.probabilities[0][0]", True),
    ({"evidence": {"rules": [{}]}}, "evidence.rules[0]", True),
    ({"evidence": {"rules": [{"rule": "cut", "supported": "no"}]}}, "evidence.rules[0].supported", True),
    ({"evidence": {"verdict": {"converged": "yes"}}}, "evidence.verdict.converged", True),
    ({"evidence": {"verdict": {}}}, "evidence.verdict.converged", True),
    (
        {"evidence": {"overruled": [{"layer": 1, "preferred": "a", "chosen": "b", "rule": "c"}]}},
        "evidence.overruled[0].layer",
        False,
    ),
    ({"evidence": {"overruled": [{"layer": 0, "preferred": "a", "chosen": "b"}]}}, "evidence.overruled[0]", True),
    ({"cost": {"parameters": -1}}, "cost.parameters", True),
    ({"cost": {"params": 1}}, "cost.params", True),
    ({"cost": {"relative_to_interleaved": {"flops": "1"}}}, "cost.relative_to_interleaved.flops", True),
    ({"cost": {"relative_to_interleaved": {"time": 1}}}, "cost.relative_to_interleaved.time", True),
    ({"retrain": {"epochs": 1}}, "retrain.epochs", True),
    ({"retrain": {"lr": "3e-4"}}, "retrain.lr", True),
    ({"provenance": {"seed": "0"}}, "provenance.seed", True),
    ({"provenance": {"data": {"name": 1}}}, "provenance.data.name", True),
    ({"provenance": []}, "provenance", True),
]


def schema_takes(value: object) -> bool:
    return jsonschema.Draft202012Validator(SCHEMA).is_valid(value)


def test_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_full_example_round_trips_and_its_bytes_do_not_change(tmp_path: Path) -> None:
    first = Architecture.from_json(FULL)
    assert first.to_json() == FULL
    first.save(tmp_path / "a.json")
    again = Architecture.load(tmp_path / "a.json")
    again.save(tmp_path / "b.json")
    assert again == first
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


@pytest.mark.parametrize("changes", GOOD)
def test_loader_and_schema_take(changes: dict) -> None:
    value = {**SMALL, **changes}
    found = Architecture.from_json(copy.deepcopy(value))
    assert schema_takes(value)
    assert schema_takes(found.to_json())
    assert Architecture.from_json(found.to_json()) == dataclasses.replace(found)


@pytest.mark.parametrize(("changes", "path", "schema_can_tell"), BAD)
def test_loader_and_schema_refuse(changes: dict, path: str, schema_can_tell: bool, tmp_path: Path) -> None:
    value = {**SMALL, **changes}
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(ArchitectureError) as caught:
        Architecture.load(file)
    assert caught.value.path == path
    assert f"bad.json: {path}: " in str(caught.value) and "\n" not in str(caught.value)
    assert isinstance(caught.value, ValueError)
    if schema_can_tell:
        assert not schema_takes(value)


@pytest.mark.parametrize("key", ["format", "version", "task", "model", "layers"])
def test_needed_keys(key: str) -> None:
    value = {name: item for name, item in SMALL.items() if name != key}
    with pytest.raises(ArchitectureError) as caught:
        Architecture.from_json(value)
    assert caught.value.path == key
    assert not schema_takes(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{",
        '{"format": NaN}',
        '{"format": 1, "format": 2}',
        "[" * 100000,
        '{"a": Infinity}',
        '{"a": 1e999}',
        b"\xff\xfe",
        '{"format": "par-architecture", "version": ' + "9" * 5000 + "}",
    ],
)
def test_what_is_no_strict_json_is_refused(text: str | bytes, tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ArchitectureError, match="bad.json"):
        Architecture.load(file)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArchitectureError, match="nothing.json: No such file"):
        Architecture.load(tmp_path / "nothing.json")


def test_lone_surrogates_cannot_get_in(tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    file.write_text(json.dumps({**SMALL, "provenance": {"note": "\ud800"}}), encoding="utf-8")
    with pytest.raises(ArchitectureError, match="provenance.note: holds a lone surrogate"):
        Architecture.load(file)


def test_a_file_without_name_takes_the_files(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(json.dumps(SMALL), encoding="utf-8")
    assert Architecture.load(tmp_path / "mine.json").name == "mine"


def test_older_versions_migrate_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_zero(value: dict) -> dict:
        return {**{k: v for k, v in value.items() if k != "blocks"}, "layers": [{"block": b} for b in value["blocks"]]}

    old = {"format": "par-architecture", "version": 0, "task": "causal_lm", "model": {}, "blocks": ["identity"]}
    with pytest.raises(ArchitectureError, match="version: expected 1, got 0"):
        Architecture.from_json(old)
    monkeypatch.setitem(architecture_module.MIGRATIONS, 0, from_zero)
    assert Architecture.from_json(old).pattern == "i"
    with pytest.raises(ArchitectureError, match="got 2; a newer program wrote it"):
        Architecture.from_json({**SMALL, "version": 2})


def test_record_is_valid_however_it_is_made() -> None:
    model = ModelSettings(d_model=12, heads=3)
    made = Architecture(
        "a", "causal_lm", model, ("feed_forward[d_inner=7]", Candidate("self_attention", (("heads", 3),)))
    )
    assert made.layers == (Candidate("feed_forward", (("d_inner", 7),)), Candidate("self_attention"))
    with pytest.raises(SettingError, match=r"layers\[0\].heads"):
        dataclasses.replace(made, layers=(Candidate("self_attention", (("heads", 5),)),))
    with pytest.raises(SettingError, match="task"):
        dataclasses.replace(made, task="masked_lm")
    with pytest.raises(SettingError, match="^layers"):
        dataclasses.replace(made, layers=())


def test_numpy_values_and_tuples_become_plain_json(tmp_path: Path) -> None:
    evidence = {
        "candidates": ("a",),
        "probabilities": np.array([[0.25]]),
        "figures": {"x": np.float64(0.5), "y": float("nan")},
    }
    made = dataclasses.replace(Architecture.from_json(SMALL), evidence=evidence)
    assert made.evidence == {"candidates": ["a"], "probabilities": [[0.25]], "figures": {"x": 0.5, "y": None}}
    made.save(tmp_path / "a.json")
    assert Architecture.load(tmp_path / "a.json") == made


def test_labels_keep_their_options_through_the_file(tmp_path: Path) -> None:
    layers = (
        "self_attention[heads=2]",
        "mixture_synthesizer[parts=dense+random]",
        "factorized_dense_synthesizer[a=2,b=64]",
    )
    made = Architecture("a", "causal_lm", ModelSettings(), layers)
    made.save(tmp_path / "a.json")
    loaded = Architecture.load(tmp_path / "a.json")
    assert [layer.label for layer in loaded.layers] == list(layers)
    assert loaded.pattern == "sme"


def test_parameters_and_flops_are_exact_integers_and_add_up() -> None:
    model = {"vocab_size": 31, "d_model": 20, "heads": 5, "d_inner": 34, "max_len": 12}
    whole = Architecture.from_pattern("sfi", model=model)
    attention = 4 * 20 * 20 + 2 * 20
    feed_forward = 2 * 20 * 34 + 20 + 34 + 2 * 20
    assert whole.parameters() == 31 * 20 + 12 * 20 + 2 * 20 + attention + feed_forward
    seq_len = 7
    assert whole.flops_per_token(seq_len) == 8 * 20 * 20 + 4 * seq_len * 20 + 4 * 20 * 34 + 2 * 20 * 31
    assert all(type(count) is int for count in (whole.parameters(), whole.flops_per_token(seq_len)))
    for wrong in (0, 13, 2.0, True):
        with pytest.raises(SettingError, match="seq_len"):
            whole.flops_per_token(wrong)


def test_cost_is_relative_to_the_interleaved_layers_alone() -> None:
    model = {"vocab_size": 9999, "max_len": 16}
    assert Architecture.from_pattern("sfsf", model=model).relative_flops(16) == 1
    assert Architecture.from_pattern("sfi", model=model).relative_flops(16) == pytest.approx(2 / 3)
    costed = Architecture.from_pattern("sfii", model=model).with_cost(16)
    assert costed.cost["relative_to_interleaved"] == {"flops": 0.5, "latency": None}
    assert costed.cost["parameters"] == costed.parameters()


def test_from_pattern_checks_and_names() -> None:
    assert Architecture.from_pattern("(sf)x2", name="mine").name == "mine"
    assert Architecture.from_pattern("(sf)x2").name == "(sf)x2"
    assert Architecture.from_pattern("sf" * 70).name == "(sf)x70"
    assert Architecture.from_pattern("sf", model={"layers": 2, "task": "masked_lm"}).task == "masked_lm"
    with pytest.raises(SettingError, match="pattern has 2 layers"):
        Architecture.from_pattern("sf", model={"layers": 3})
    with pytest.raises(SettingError, match="^task"):
        Architecture.from_pattern("sf", model={"task": "other"})


def test_schema_names_what_the_code_names() -> None:
    model = SCHEMA["$defs"]["model"]["properties"]
    assert SCHEMA["properties"]["task"]["enum"] == list(TASKS)
    assert (model["norm"]["enum"], model["position"]["enum"]) == (list(NORMS), list(POSITIONS))
    defaults = {**ModelSettings().to_mapping(), "cutoffs": [], "share_biases": True}
    assert {key: entry["default"] for key, entry in model.items()} == defaults
    options = {
        entry["properties"]["block"]["const"]: set(entry["properties"]) - {"block"}
        for entry in SCHEMA["$defs"]["layer"]["oneOf"]
    }
    built_in = {
        name: set(default_options(name, ModelSettings()))
        for name, spec in BLOCKS.items()
        if isinstance(spec.module, str)
    }
    assert options == built_in
    assert list(SCHEMA["properties"]) == list(architecture_module.KEYS)


def test_loading_stays_fast_on_hostile_sizes() -> None:
    model = {"max_len": 2**31 - 1, "d_model": 2**31 - 1, "heads": 1}
    value = {**SMALL, "model": model, "layers": [{"block": "factorized_dense_synthesizer"}] * 4096}
    assert Architecture.from_json(value).parameters() > 10**15
