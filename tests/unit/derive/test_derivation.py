"""Deriving from a run folder: three right files, from one seed or several, and nothing in the folder is trusted."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml

from derive import Architecture, derive_architectures, pareto_front
from supernet.blocks import candidate_cost, parse_candidate
from supernet.errors import UserError
from supernet.settings import ModelSettings

LABELS = ["feed_forward", "self_attention", "identity", "random_synthesizer[heads=2]"]
MODEL = {
    "task": "causal_lm",
    "layers": 12,
    "d_model": 20,
    "heads": 4,
    "d_inner": 34,
    "max_len": None,
    "memory_len": 0,
    "dropout": 0.1,
    "norm": "pre",
    "position": "learned",
    "tie_embeddings": True,
}
SETTINGS = ModelSettings(vocab_size=61, d_model=20, heads=4, d_inner=34, max_len=14, dropout=0.1)
CONFIG = {
    "run": {"seed": 3},
    "data": {"name": "sotu", "seq_len": 14, "batch_size": 5},
    "model": MODEL,
    "search": {"budget": 0.9, "blocks": LABELS},
    "derive": {"cut": None, "ratio": None, "budget": None, "rules": None},
    "retrain": {"steps": 70, "lr": "3e-4"},
}
PRICES = {label: candidate_cost(parse_candidate(label, SETTINGS), SETTINGS, 14)[1] for label in LABELS}


def table(layers: int = 12, early: int = 4, rng_seed: int = 0) -> np.ndarray:
    """Twelve recorded entries [12, N, 4]: uniform at first, then attention early and feed-forward late."""
    rng = np.random.default_rng(rng_seed)
    goal = np.full((layers, 4), 0.03)
    goal[:early, 1], goal[early:, 0] = 0.91, 0.91
    entries = [np.full((layers, 4), 0.25)] * 6 + [goal + rng.uniform(0, 0.02, goal.shape) for _ in range(6)]
    return np.array([entry / entry.sum(axis=1, keepdims=True) for entry in entries])


def write_seed(
    folder: Path, seed: int = 3, labels: list[str] = LABELS, probabilities: np.ndarray | None = None, **changes: Any
) -> None:
    probabilities = table(rng_seed=abs(seed)) if probabilities is None else probabilities
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "candidates": labels,
        "steps": [10 * k for k in range(len(probabilities))],
        "probabilities": getattr(probabilities, "tolist", lambda: probabilities)(),
        "cost": {"unit": "flops_per_token", "candidates": PRICES, "budget": 0.9},
        "seed": seed,
        "verdict": {"converged": seed != 4, "reasons": [] if seed != 4 else ["still changing"]},
        **changes,
    }
    (folder / "probabilities.json").write_text(json.dumps(record), encoding="utf-8")
    data = {"name": "sotu", "file": "sotu.txt", "sha256": "ab" * 32, "bytes": 9, "vocab_size": 61, "parts": {}}
    (folder / "data.json").write_text(json.dumps(data), encoding="utf-8")
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG), encoding="utf-8")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_seed(tmp_path / "my-run")
    return tmp_path / "my-run"


def set_config(run: Path, section: str, **values: Any) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    config[section].update(values)
    (run / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")


def test_three_files_of_the_contracts_shape(run: Path, tmp_path: Path) -> None:
    before = sorted(path.name for path in run.iterdir())
    found = derive_architectures(run)
    assert list(found) == ["argmax", "par-rule", "budget"]
    assert found["argmax"].pattern == found["par-rule"].pattern == "ssss" + "f" * 8
    assert sorted(path.name for path in run.iterdir()) == before  # writes nothing
    schema = json.loads((Path(__file__).parents[3] / "derive" / "architecture.schema.json").read_text(encoding="utf-8"))
    for name, arch in found.items():
        assert arch.name == name
        arch.save(tmp_path / f"{name}.json")
        assert Architecture.load(tmp_path / f"{name}.json") == arch
        jsonschema.validate(arch.to_json(), schema)
        text = (tmp_path / f"{name}.json").read_text(encoding="utf-8")
        assert str(tmp_path) not in text
        value = json.loads(text)
        assert set(value) == {
            "format",
            "version",
            "name",
            "task",
            "model",
            "layers",
            "pattern",
            "evidence",
            "cost",
            "retrain",
            "provenance",
        }
        assert value["evidence"]["candidates"] == LABELS
        assert np.allclose(value["evidence"]["probabilities"], table(rng_seed=3)[-1], atol=1e-6)
        assert value["evidence"]["verdict"] == {"converged": True, "reasons": []}
        assert value["retrain"] == {"steps": 70, "lr": 3e-4, "batch_size": 5, "seq_len": 14}
        assert value["provenance"] == {
            "run": "my-run",
            "seed": 3,
            "step": 110,
            "selection": "last",
            "data": {"name": "sotu", "sha256": "ab" * 32},
            "versions": {},
        }
        assert value["cost"]["parameters"] == arch.parameters()
        assert value["cost"]["flops_per_token"] == arch.flops_per_token(14)
        assert value["model"]["vocab_size"] == 61 and value["model"]["max_len"] == 14
    assert found["argmax"].evidence["overruled"] == []
    rules = {rule["rule"]: rule for rule in found["par-rule"].evidence["rules"]}
    assert (rules["cut"]["value"], rules["ratio"]["value"]) == (pytest.approx(1 / 3, abs=1e-6), 3.0)
    assert all(
        rule["supported"] and rule["reason"]
        for rule in found["par-rule"].evidence["rules"]
        if rule["rule"] != "identity"
    )


def test_equal_input_gives_equal_bytes_in_another_process(run: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from derive import derive_architectures as d\n"
        "for n, a in d(sys.argv[1]).items(): a.save(f'{sys.argv[2]}/{n}.json')"
    )
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        root = Path(__file__).parents[3]
        subprocess.run([sys.executable, "-c", code, str(run), str(tmp_path / name)], cwd=root, check=True, timeout=60)
    for name in ("argmax", "par-rule", "budget"):
        assert (tmp_path / "one" / f"{name}.json").read_bytes() == (tmp_path / "two" / f"{name}.json").read_bytes()


def test_budget_weighs_the_layers_by_the_files_costs(run: Path) -> None:
    baseline = 12 / 2 * (PRICES["self_attention"] + PRICES["feed_forward"])
    for budget in (0.3, 0.65, 1.0):
        arch = derive_architectures(run, budget=budget)["budget"]
        cost = sum(
            PRICES[LABELS[[parse_candidate(lb, SETTINGS) for lb in LABELS].index(layer)]] for layer in arch.layers
        )
        assert cost <= budget * baseline
        rule = arch.evidence["rules"][0]
        assert (rule["rule"], rule["value"]) == ("budget", budget)
        assert rule["used"] == pytest.approx(cost / baseline, abs=1e-6)
        assert arch.cost["relative_to_interleaved"]["flops"] == pytest.approx(cost / baseline, abs=1e-6)
        for entry in arch.evidence["overruled"]:
            assert entry["rule"] == "budget" and entry["preferred_probability"] >= entry["chosen_probability"]
    assert derive_architectures(run, budget=0.3)["budget"].evidence["overruled"]


def test_null_budget_falls_back_to_the_searchs_and_then_to_none(run: Path) -> None:
    assert derive_architectures(run)["budget"].evidence["rules"][0]["value"] == 0.9
    set_config(run, "derive", budget=0.5)
    assert derive_architectures(run)["budget"].evidence["rules"][0]["value"] == 0.5
    assert derive_architectures(run, budget=0.4)["budget"].evidence["rules"][0]["value"] == 0.4
    set_config(run, "derive", budget=None)
    set_config(run, "search", budget=None)
    found = derive_architectures(run)
    assert found["budget"].pattern == found["argmax"].pattern
    assert found["budget"].evidence["rules"][0]["value"] is None
    assert "No budget" in found["budget"].evidence["rules"][0]["reason"]


def test_forced_cut_and_ratio_and_constraints(run: Path) -> None:
    assert derive_architectures(run, cut=2 / 3, ratio=5)["par-rule"].pattern == "sfff" + "sfffffff"
    set_config(run, "derive", cut=1.0, ratio=4, rules=[{"block": "self_attention", "exactly": 2, "name": "two"}])
    found = derive_architectures(run)
    assert found["par-rule"].pattern == "sfff" * 3
    assert found["budget"].pattern.count("s") == 2
    rules = found["budget"].evidence["rules"]
    assert [rule["rule"] for rule in rules] == ["budget", "two"] and rules[1]["used"] == 2
    assert {entry["rule"] for entry in found["budget"].evidence["overruled"]} == {"two"}
    overruled = found["par-rule"].evidence["overruled"]
    assert [(entry["layer"], entry["preferred"], entry["chosen"], entry["rule"]) for entry in overruled] == [
        (1, "self_attention", "feed_forward", "ratio"),
        (2, "self_attention", "feed_forward", "ratio"),
        (3, "self_attention", "feed_forward", "ratio"),
        (4, "feed_forward", "self_attention", "ratio"),
        (8, "feed_forward", "self_attention", "ratio"),
    ]
    cheap = derive_architectures(
        run, rules=[{"cost": "parameters", "at_most": 9000}, {"cost": "flops_per_token", "at_most": 1e9}]
    )
    layers = cheap["budget"].layers
    assert sum(candidate_cost(layer, SETTINGS, 14)[0] for layer in layers) <= 9000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"budget": 0.0}, "derive.budget"),
        ({"budget": 1.2}, "derive.budget"),
        ({"cut": 0}, "derive.cut"),
        ({"ratio": 0.2}, "derive.ratio"),
        ({"rules": [{"block": "self_attentoin", "at_most": 2}]}, "derive.rules[0].block"),
        ({"selection": "median"}, "derive.selection"),
        ({"rules": [{"block": "self_attention", "exactly": 12}], "budget": 0.5}, "smallest feasible fraction"),
    ],
)
def test_wrong_arguments_are_the_users_mistake(run: Path, arguments: dict, words: str) -> None:
    with pytest.raises(UserError) as caught:
        derive_architectures(run, **arguments)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_average_is_over_the_last_quarter(run: Path) -> None:
    found = derive_architectures(run, selection="average")["argmax"]
    assert np.allclose(found.evidence["probabilities"], table(rng_seed=3)[-3:].mean(axis=0), atol=1e-6)
    assert found.provenance["selection"] == "average"


def test_labels_with_options_reach_the_layers(run: Path) -> None:
    probabilities = table()[:, :, [0, 3, 2, 1]]
    write_seed(run, probabilities=probabilities)
    found = derive_architectures(run)["par-rule"]
    assert found.layers[0].label == "random_synthesizer[heads=2]"
    assert found.pattern == "rrrr" + "f" * 8
    assert (
        next(rule for rule in found.evidence["rules"] if rule["rule"] == "kind")["value"]
        == "random_synthesizer[heads=2]"
    )


def test_several_seeds_are_combined_by_label(tmp_path: Path) -> None:
    parent = tmp_path / "many"
    for seed, early in ((3, 4), (4, 4), (10, 6)):
        order = [0, 1, 2, 3] if seed != 4 else [2, 1, 3, 0]
        write_seed(
            parent / f"seed-{seed}", seed, [LABELS[k] for k in order], table(early=early, rng_seed=seed)[:, :, order]
        )
    (parent / "config.yaml").write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    (parent / "seed-x").mkdir()
    found = derive_architectures(parent)
    means = np.mean([table(early=early, rng_seed=seed)[-1] for seed, early in ((3, 4), (4, 4), (10, 6))], axis=0)
    argmax = found["argmax"]
    assert np.allclose(argmax.evidence["probabilities"], means, atol=1e-6)
    assert argmax.pattern == "ssss" + "f" * 8
    assert argmax.provenance["seeds"] == [3, 4, 10] and argmax.provenance["seed"] == 3
    assert argmax.evidence["verdict"] == {"converged": False, "reasons": ["seed 4: still changing"]}
    rules = {rule["rule"]: rule for rule in found["par-rule"].evidence["rules"]}
    assert found["par-rule"].pattern == "ssss" + "f" * 8  # what two of the three seeds say
    assert (rules["ratio"]["value"], rules["ratio"]["count_interval"]) == (3.0, [4, 6])
    assert rules["ratio"]["preferred"] == pytest.approx(14 / 3, abs=1e-4)
    assert not rules["cut"]["supported"] and rules["cut"]["end_interval"] == [4, 6]
    assert rules["program"]["agreement"]["by_layer"] == pytest.approx(1 - 4 / 36, abs=1e-4)


def test_seeds_of_other_searches_are_not_combined(tmp_path: Path) -> None:
    write_seed(tmp_path / "seed-0", 0)
    write_seed(
        tmp_path / "seed-1",
        1,
        probabilities=table()[:, :, :3] / table()[:, :, :3].sum(axis=2, keepdims=True),
        labels=LABELS[:3],
    )
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    with pytest.raises(UserError, match="seed-1.*cannot be combined"):
        derive_architectures(tmp_path)
    write_seed(tmp_path / "seed-1", 1)
    (tmp_path / "seed-1" / "probabilities.json").unlink()
    with pytest.raises(UserError, match="seed-1.*probabilities.json: No such file"):
        derive_architectures(tmp_path)
    write_seed(tmp_path / "seed-1", 1)
    data = json.loads((tmp_path / "seed-1" / "data.json").read_text(encoding="utf-8"))
    (tmp_path / "seed-1" / "data.json").write_text(json.dumps({**data, "sha256": "cd" * 32}), encoding="utf-8")
    with pytest.raises(UserError, match="other data"):
        derive_architectures(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"candidates": ["feed_forward"] * 4}, "candidates: "),
        ({"candidates": [*LABELS[:3], "self_attention[heads=4]"]}, "cost.candidates: has no"),
        ({"candidates": [*LABELS[:3], 5]}, "candidates[3]"),
        ({"candidates": None}, "candidates: expected a list"),
        ({"steps": [0]}, "probabilities: expected one entry a recorded step"),
        ({"steps": []}, "probabilities: "),
        ({"steps": ["0"] * 12}, "steps[0]"),
        ({"probabilities": []}, "probabilities: "),
        ({"probabilities": [[]] * 12}, "probabilities[9]"),
        ({"probabilities": [[[0.5, 0.5]]] * 12}, "probabilities[9][0]: has 2 numbers"),
        ({"probabilities": [[[0.5, 0.5, 0.5, 0.5]]] * 12}, "probabilities[9][0]: sums to 2"),
        ({"probabilities": [[[1.5, -0.5, 0, 0]]] * 12}, "probabilities[9][0][1]"),
        ({"probabilities": [[["a", 0, 0, 1]]] * 12}, "probabilities[9][0][0]"),
        ({"probabilities": [[[None, 0, 0, 1]]] * 12}, "probabilities[9][0][0]"),
        ({"probabilities": [[[True, 0, 0, 0]]] * 12}, "probabilities[9][0][0]"),
        ({"probabilities": [[[1, 0, 0, 0]]] * 11 + [[[1, 0, 0, 0]] * 2]}, "probabilities[11]: has 2 layers"),
        ({"probabilities": [[[1, 0, 0, 0]]] * 12}, "model.layers: is 12"),
        ({"cost": None}, "cost: expected an object"),
        ({"cost": {"unit": "joule", "candidates": PRICES}}, "cost.unit"),
        ({"cost": {"unit": "ms", "candidates": {**PRICES, "identity": -1}}}, "cost.candidates.identity"),
        ({"cost": {"unit": "ms", "candidates": {}}}, "cost.candidates: has no"),
        ({"cost": {"unit": "ms", "candidates": dict.fromkeys(PRICES, 0)}}, "cost nothing"),
        ({"cost": {"unit": "ms", "candidates": PRICES, "budget": "much"}}, "cost.budget"),
        ({"seed": -1}, "seed"),
        ({"verdict": {"converged": 1}}, "verdict.converged"),
        ({"verdict": {"converged": True, "reasons": [1]}}, "verdict.reasons[0]"),
    ],
)
def test_probabilities_are_not_trusted(run: Path, changes: dict, words: str) -> None:
    write_seed(run, **changes)
    with pytest.raises(UserError) as caught:
        derive_architectures(run)
    assert words in str(caught.value) and "\n" not in str(caught.value), str(caught.value)


@pytest.mark.parametrize("text", ["", "[1, 2]", "{", '{"candidates": NaN}', '{"a": 1, "a": 2}', "\x00"])
def test_broken_probabilities_are_named(run: Path, text: str) -> None:
    (run / "probabilities.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="probabilities.json"):
        derive_architectures(run)


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "- 1",
        "5",
        "",
        "model: 3",
        "model: {heads: 3}",
        "model: {colour: 3}",
        "model: {task: sing}",
        "\x00",
        "!!python/object:x {}",
        "model: {heads: 4, heads: 4}",
        "[" * 5000,
        "a: &a [*a]",
        "model: {layers: 7}",
        "model: {dropout: lots}",
        "data: {seq_len: 99999}\nmodel: {max_len: 5}",
        "data: {seq_len: true}\nmodel: {max_len: 5}",
        "derive: {rules: 5}",
        "derive: {budget: 7}",
        "derive: {cut: half}",
        "search: {budget: cheap}",
        "retrain: {steps: many}",
        "retrain: {lr: -1}",
    ],
)
def test_configurations_are_not_trusted(run: Path, text: str) -> None:
    (run / "config.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        derive_architectures(run)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data", [{}, {"vocab_size": 0}, {"vocab_size": 5.0}, [], {"vocab_size": 5, "name": 1, "sha256": "a"}]
)
def test_data_files_are_not_trusted(run: Path, data: object) -> None:
    (run / "data.json").write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(UserError, match="data.json"):
        derive_architectures(run)


def test_missing_files_and_folders_are_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere: no such run folder"):
        derive_architectures(tmp_path / "nowhere")
    (run / "probabilities.json").unlink()
    with pytest.raises(UserError, match="neither probabilities.json nor seed-K"):
        derive_architectures(run)
    (run / "config.yaml").unlink()
    with pytest.raises(UserError, match="config.yaml"):
        derive_architectures(run)


def test_measured_latency_is_weighed_and_reported(run: Path) -> None:
    prices = {"feed_forward": 2.0, "self_attention": 6.0, "identity": 0.0, "random_synthesizer[heads=2]": 3.0}
    write_seed(run, cost={"unit": "ms", "candidates": prices, "budget": None})
    arch = derive_architectures(run, budget=0.5)["budget"]
    total = sum({"f": 2.0, "s": 6.0, "i": 0.0, "r": 3.0}[letter] for letter in arch.pattern)
    assert total <= 0.5 * 48
    assert arch.cost["relative_to_interleaved"]["latency"] == pytest.approx(total / 48)


def test_front_from_the_runs_files(run: Path) -> None:
    found = pareto_front(run, points=12)
    assert 4 < len(found) <= 12
    assert found[-1]["pattern"] == "ssss" + "f" * 8
    costs = [point["cost"] for point in found]
    assert costs == sorted(costs) and all(math.isfinite(point["log_probability"]) for point in found)
    assert all(len(point["layers"]) == 12 and set(point["layers"]) <= set(LABELS) for point in found)


def test_baseline_is_priced_in_closed_form_where_its_blocks_were_no_candidates(run: Path) -> None:
    labels = ["feed_forward[d_inner=20]", "random_synthesizer[heads=2]", "identity"]
    prices = {label: candidate_cost(parse_candidate(label, SETTINGS), SETTINGS, 14)[1] for label in labels}
    probabilities = np.tile([[0.8, 0.15, 0.05]], (4, 12, 1))
    cost = {"unit": "flops_per_token", "candidates": prices, "budget": None}
    write_seed(run, labels=labels, probabilities=probabilities, cost=cost)
    used = derive_architectures(run, budget=1.0)["budget"].evidence["rules"][0]["used"]
    pair = PRICES["self_attention"] + PRICES["feed_forward"]
    assert used == pytest.approx(12 * prices["feed_forward[d_inner=20]"] / (6 * pair), abs=1e-6)
    write_seed(run, labels=labels, probabilities=probabilities, cost={**cost, "unit": "ms"})
    with pytest.raises(UserError, match="has no 'self_attention', which the baseline is made of"):
        derive_architectures(run)


def test_a_folder_of_odd_bytes_can_be_derived_from(run: Path, tmp_path: Path) -> None:
    odd = run.rename(tmp_path / "odd\udcff\nname")
    arch = derive_architectures(odd)["argmax"]
    arch.save(tmp_path / "a.json")
    assert Architecture.load(tmp_path / "a.json") == arch
