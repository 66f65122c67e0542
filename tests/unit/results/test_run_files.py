"""Run folders read back: what was written comes out, and what is wrong is refused by file and place."""

import json

import numpy as np
import pytest
import yaml
from made_runs import build_run, labels

from derive.strict_json import read_json, write_json
from nas.results.run_files import Run
from nas.results.run_readers import layer_labels, read_metrics, read_probabilities
from supernet.errors import UserError


@pytest.fixture
def folder(tmp_path):
    return build_run(tmp_path / "run", layers=5, candidates=4, steps=8)


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    return build_run(tmp_path_factory.mktemp("runs") / "parent", layers=5, candidates=4, steps=8, seeds=3)


def test_arrays_are_what_the_files_say(folder):
    run, written = Run.load(folder), read_json(folder / "probabilities.json")
    assert np.array_equal(run.search.probabilities, np.array(written["probabilities"]))
    assert run.search.steps.tolist() == written["steps"] and run.candidates == written["candidates"]
    assert run.search.costs.tolist() == [written["cost"]["candidates"][label] for label in run.candidates]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert run.metrics["loss"].tolist() == [line["loss"] for line in lines]
    held_out = [line["held_out_loss"] for line in lines]
    assert [None if np.isnan(value) else value for value in run.metrics["held_out_loss"]] == held_out
    assert run.metrics["phase"].tolist() == [line["phase"] for line in lines]
    assert run.comparison == read_json(folder / "comparison.json")
    assert run.config == yaml.safe_load((folder / "config.yaml").read_text())
    assert list(run.architectures) == ["best", "argmax", "par-rule", "budget"]
    assert set(run.retrained) == {
        (name, seed) for name in ("argmax", "par-rule", "budget", "interleaved", "par") for seed in (0, 1)
    }
    assert run.layers == 5 and run.setting("search.warmup_steps") == 20 and run.setting("search.nothing", 7) == 7


def test_derived_figures_follow_their_formulas(folder):
    search = Run.load(folder).search
    p = search.probabilities
    entropy = [[-sum(x * np.log(x) for x in row if x > 0) for row in table] for table in p]
    assert np.allclose(search.entropy(), entropy)
    assert np.allclose(search.margin()[-1], [sorted(row)[-1] - sorted(row)[-2] for row in p[-1]])
    assert np.allclose(
        search.expected_cost(),
        [sum(x * c for row in table for x, c in zip(row, search.costs, strict=True)) for table in p],
    )
    price = search.cost_table
    assert search.interleaved_cost() == 5 / 2 * (price["self_attention"] + price["feed_forward"])


def test_a_parent_gives_its_seeds_in_one_order_of_candidates(parent):
    shuffled = read_json(parent / "seed-1" / "probabilities.json")
    before = Run.load(parent).final()
    order = [2, 0, 3, 1]
    shuffled["candidates"] = [shuffled["candidates"][k] for k in order]
    shuffled["probabilities"] = [[[row[k] for k in order] for row in table] for table in shuffled["probabilities"]]
    write_json(parent / "seed-1" / "probabilities.json", shuffled)
    run = Run.load(parent)
    assert run.search is None and list(run.seeds) == [0, 1, 2] and run.candidates == labels(4)
    assert np.array_equal(run.final(), before)
    assert run.agreement["seeds"] == [0, 1, 2] and run.seeds[2].search.seed == 2


def test_seeds_of_different_candidates_are_refused(tmp_path):
    parent = build_run(tmp_path / "run", layers=4, candidates=3, steps=4, seeds=2, stages=("search",))
    build_run(parent / "seed-1", layers=4, candidates=4, steps=4, stages=("search",))
    with pytest.raises(UserError, match="differ in layers or candidates"):
        Run.load(parent).final()


def test_a_stage_that_has_not_run_is_none_or_empty(tmp_path):
    run = Run.load(build_run(tmp_path / "run", stages=("search",)))
    assert run.architectures == {} and run.comparison == [] and run.retrained == {} and run.latency is None
    run = Run.load(build_run(tmp_path / "run", stages=("retrain",)))
    assert run.search is None and run.candidates == [] and run.comparison and run.layers == 6
    with pytest.raises(UserError, match="no probabilities.json"):
        run.final()


def test_a_line_that_is_still_being_written_is_left_out(folder):
    before = read_metrics(folder / "metrics.jsonl")
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 999, "lo')
    assert read_metrics(folder / "metrics.jsonl")["step"].tolist() == before["step"].tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("steps"), "steps: expected a list"),
        (lambda c: c.update(candidates=[]), "candidates: expected a list"),
        (lambda c: c.update(candidates=["identity"] * 4), "candidates: expected labels that differ"),
        (lambda c: c["steps"].reverse(), "steps: expected rising"),
        (lambda c: c["steps"].append(9999), "9 steps and 4 candidates, got 8x5x4"),
        (lambda c: c["probabilities"][3][2].append(0.0), "levels of lists of equal lengths"),
        (lambda c: c["probabilities"][3][2].__setitem__(1, None), "levels of lists of equal lengths"),
        (
            lambda c: c["probabilities"][3][2].__setitem__(1, 0.9),
            r"probabilities\[3\]\[2\]: expected numbers from 0 that sum to 1",
        ),
        (lambda c: c["cost"].update(budget="half"), "cost.budget: expected a number"),
        (lambda c: c["cost"].update(candidates=[1, 2]), "cost.candidates: expected an object"),
        (lambda c: c.update(verdict=["yes"]), "verdict: expected an object"),
    ],
)
def test_wrong_probabilities_are_refused_by_place(folder, change, message):
    path = folder / "probabilities.json"
    content = read_json(path)
    change(content)
    write_json(path, content)
    with pytest.raises(UserError, match=f"probabilities.json: .*{message}"):
        read_probabilities(path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("metrics.jsonl", '{"step": 1, "loss": NaN}\n', "metrics.jsonl:1: NaN is not standard JSON"),
        ("metrics.jsonl", '{"step": 2}\n{"step": 2}\n', "metrics.jsonl:2: step 2 does not come after step 2"),
        ("metrics.jsonl", '{"loss": 2}\n', "metrics.jsonl:1: expected an object with an integer 'step'"),
        ("metrics.jsonl", "[1]\n", "metrics.jsonl:1: expected an object"),
        (
            "metrics.jsonl",
            '{"step": 1, "loss": 2}\n{"step": 2, "loss": "low"}\n',
            "loss: holds numbers in some lines and words",
        ),
        ("comparison.json", "{}", "comparison.json: expected a list"),
        ("comparison.json", '[{"seed": 0}]', r"comparison.json: \[0\]: expected an object with a 'name'"),
        (
            "comparison.json",
            '[{"name": "a", "held_out_loss": "low"}]',
            r"comparison.json: \[0\].held_out_loss: expected a number",
        ),
        ("data.json", "[]", "data.json: expected an object, got list"),
        ("latency.json", '{"a": 1, "a": 2}', "latency.json: key 'a' stands twice"),
        ("config.yaml", "a: [1", "config.yaml: not YAML"),
        ("config.yaml", "- 1", "config.yaml: expected sections"),
        ("config.yaml", "[" * 5000, "config.yaml: nested too deeply"),
        ("config.yaml", "run: {seed: 1, seed: 2}", "config.yaml: key 'seed' stands twice"),
        ("config.yaml", "a: &a [*a]", "config.yaml: more than 50,000 values"),
        ("comparison.json", '[{"name": "a", "pattern": 3}]', r"comparison.json: \[0\].pattern: expected text"),
        (
            "comparison.json",
            '[{"name": "a", "standard_error": []}]',
            r"comparison.json: \[0\].standard_error: expected a number",
        ),
        ("sweep/sweep.json", '{"points": [], "baseline": [1]}', "sweep.json: baseline: expected an object"),
        ("sweep/sweep.json", '{"points": [], "seeds": {}}', "sweep.json: seeds: expected an integer"),
        ("architectures/best.json", '{"layers": [{"block": 3}]}', r"best.json: layers\[0\].block: expected text"),
        (
            "architectures/best.json",
            '{"layers": [{"block": "identity"}], "evidence": [1]}',
            "best.json: evidence: expected an object",
        ),
        (
            "architectures/best.json",
            '{"layers": [{"block": "identity"}], "provenance": 1}',
            "best.json: provenance: expected an object",
        ),
        ("architectures/argmax.json", '{"layers": []}', "argmax.json: layers: expected a list of objects"),
        ("architectures/argmax.json", '{"layers": ["s"]}', "argmax.json: layers: expected a list of objects"),
        ("retrain/par/seed-0/metrics.jsonl", "x\n", "metrics.jsonl:1: not JSON"),
    ],
)
def test_broken_files_are_refused_by_name(folder, name, text, message):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    with pytest.raises(UserError, match=message):
        Run.load(folder)


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        Run.load(tmp_path / "nothing")
    with pytest.raises(UserError, match="not a run folder; it has none of config.yaml"):
        Run.load(tmp_path)


def test_labels_of_an_architectures_layers():
    model = {"d_model": 16, "heads": 4, "max_len": 16}
    layers = [{"block": "self_attention", "heads": 2}, {"block": "feed_forward"}, {"block": "my_own", "size": 3}]
    assert layer_labels({"model": model, "layers": layers}) == ["self_attention[heads=2]", "feed_forward", "my_own"]
