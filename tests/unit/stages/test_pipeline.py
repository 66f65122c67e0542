"""The pipeline in this process: what is trained, copied, compared and left alone."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import call, error_line, tiny, tiny_yaml

from derive import Architecture, build
from nas.data.batches import evaluation_batches
from nas.data.corpus import load_corpus
from nas.machine.stop import StopFlag
from nas.results.run_folder import open_run_folder
from nas.stages import pipeline
from nas.stages.pipeline import page_follows
from nas.stages.retrain_stage import retrain_stage
from nas.stages.search_stage import search_finished


def results(run: Path) -> dict[str, dict]:
    return {row["name"]: row for row in json.loads((run / "comparison.json").read_text())}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`retrain` of a pattern, a preset and a file, beside `interleaved`."""
    home = tmp_path_factory.mktemp("trained")
    model = {**tiny().model.settings(256, 16).to_mapping(), "d_model": 12, "d_inner": 6}
    Architecture.from_pattern("rfi", model, name="from-file").save(home / "mine.json")
    config = tiny_yaml(home / "tiny.yaml", model__layers=4)
    done = call(
        "retrain",
        "(sf)x2",
        "par",
        home / "mine.json",
        "--config",
        config,
        "--run.dir",
        home / "run",
        "--retrain.seeds",
        2,
    )
    assert done.returncode == 0, done.stderr
    (home / "stdout").write_text(done.stdout)
    return home / "run"


def test_retrain_takes_a_pattern_a_preset_and_a_file(trained: Path) -> None:
    names = {path.name: sorted(home.name for home in path.iterdir()) for path in (trained / "retrain").iterdir()}
    assert names == {name: ["seed-0", "seed-1"] for name in ("(sf)x2", "par", "from-file", "interleaved")}
    for name, pattern, width in (("(sf)x2", "sfsf", 8), ("par", "sfff", 8), ("from-file", "rfi", 12)):
        arch = Architecture.load(trained / "retrain" / name / "seed-1" / "architecture.json")
        assert (arch.name, arch.pattern, arch.model.d_model) == (name, pattern, width)
    assert (trained / "report.html").exists() and any((trained / "plots").glob("*.png"))
    table = (trained.parent / "stdout").read_text()
    assert all(name in table for name in names)


def test_the_comparison_is_as_the_contract_has_it(trained: Path) -> None:
    rows = json.loads((trained / "comparison.json").read_text())
    wanted = [
        "name",
        "seed",
        "pattern",
        "parameters",
        "flops_per_token",
        "latency_ms",
        "steps",
        "held_out_loss",
        "perplexity",
        "bits_per_character",
    ]
    assert len(rows) == 8 and all(list(row)[:10] == wanted for row in rows)
    header, *lines = (trained / "comparison.csv").read_text().splitlines()
    assert header.split(",") == list(rows[0]) and len(lines) == 8
    for row, line in zip(rows, lines, strict=True):
        assert [str(value) for value in row.values()] == line.split(",")
    for row in rows:
        arch = Architecture.load(trained / "retrain" / row["name"] / f"seed-{row['seed']}" / "architecture.json")
        assert row["parameters"] == sum(parameter.numel() for parameter in build(arch).parameters())
        assert row["flops_per_token"] == arch.flops_per_token(16) and row["steps"] == 16 and row["latency_ms"] > 0
        assert row["perplexity"] == pytest.approx(np.exp(row["held_out_loss"]))
        assert row["bits_per_character"] == pytest.approx(row["held_out_loss"] / np.log(2))
    assert {(row["name"], row["seed"]) for row in rows} == {(row["name"], seed) for row in rows for seed in (0, 1)}


def test_the_kept_weights_give_the_loss_of_the_comparison(trained: Path) -> None:
    corpus = load_corpus(tiny().data)
    for row in json.loads((trained / "comparison.json").read_text())[:4]:
        home = trained / "retrain" / row["name"] / f"seed-{row['seed']}"
        model = build(Architecture.load(home / "architecture.json")).eval()
        model.load_state_dict(load_file(home / "model.safetensors"))
        losses = []
        with torch.no_grad():
            for batch in evaluation_batches(corpus, "held_out", seq_len=16, batch_size=8, limit=512):
                tokens = torch.from_numpy(batch)
                losses.append(
                    torch.nn.functional.cross_entropy(
                        model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
                    ).item()
                )
        assert np.mean(losses) == pytest.approx(row["held_out_loss"], abs=1e-5)


def test_equal_layouts_have_equal_losses_under_each_name(trained: Path) -> None:
    by_name = results(trained)
    assert by_name["(sf)x2"]["held_out_loss"] == by_name["interleaved"]["held_out_loss"]
    one, two = (trained / "retrain" / name / "seed-0" / "model.safetensors" for name in ("(sf)x2", "interleaved"))
    assert one.read_bytes() == two.read_bytes()


def test_best_is_one_of_the_compared(trained: Path) -> None:
    best = Architecture.load(trained / "architectures" / "best.json")
    assert best.pattern in {row["pattern"] for row in results(trained).values()}


def test_a_finished_retraining_is_left_as_it_is_but_a_new_name_is_trained(trained: Path) -> None:
    config = trained.parent / "tiny.yaml"
    same = ("--config", config, "--run.dir", trained, "--retrain.seeds", 2, "--run.resume", "true")
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*") if path.is_file() and path.name != ".lock"}
    assert call("retrain", "(sf)x2", "par", trained.parent / "mine.json", *same).returncode == 0
    assert {
        path: path.stat().st_mtime_ns for path in trained.rglob("*") if path.is_file() and path.name != ".lock"
    } == before
    assert call("retrain", "ffff", *same).returncode == 0
    assert "ffff" in results(trained) and (trained / "retrain" / "ffff" / "seed-1" / "result.json").exists()
    shallow = call("retrain", "ff", *same)  # its interleaved baseline is not the one that is there
    assert shallow.returncode == 2
    assert "holds the training of another layout of the name 'interleaved', sfsf" in shallow.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["zz"], "ARCH: 'zz'"),
        (["sf", "none.json"], "none.json"),
        (["par-base"], "vocab_size"),
        ([], "ARCH"),
        (["sf", "--retrain.against", "[zz]"], "retrain.against"),
        (["sf", "--model.heads", "3"], "model.heads"),
    ],
)
def test_retrain_refuses_before_it_writes(tmp_path: Path, arguments: list[str], words: str) -> None:
    config = tiny_yaml(tmp_path / "tiny.yaml")
    assert words in error_line(call("retrain", *arguments, "--config", config, "--run.dir", tmp_path / "run"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.yaml"]


def test_a_page_of_a_running_search_does_not_mark_its_end(tmp_path: Path) -> None:
    """A search writes its page while it runs; a resume after a kill must not take that for the end."""
    last, page = tmp_path / "probabilities.json", tmp_path / "report.html"
    assert not page_follows(last)
    page.touch()
    assert not page_follows(last)
    last.touch()
    os.utime(last, ns=(page.stat().st_mtime_ns + 1,) * 2)
    assert not page_follows(last)
    os.utime(page, ns=(last.stat().st_mtime_ns,) * 2)
    assert page_follows(last)


def test_a_search_is_finished_with_its_verdict(tmp_path: Path) -> None:
    assert not search_finished(tmp_path)
    (tmp_path / "probabilities.json").write_text('{"verdict": {"converged": false, "reasons": []}}')
    assert not search_finished(tmp_path)  # as a checkpoint on the way leaves it
    (tmp_path / "probabilities.json").write_text('{"verdict": {"converged": true, "reasons": [], "figures": {}}}')
    assert search_finished(tmp_path)


def test_finished_trainings_are_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    config = tiny()
    arch = Architecture.from_pattern("sf", config.model.settings(256, 16).to_mapping())
    with open_run_folder(config, tmp_path / "run", {}):
        retrain_stage(config, [arch], tmp_path / "run", StopFlag())
        home = tmp_path / "run" / "retrain" / "sf" / "seed-0"
        before = (home / "model.safetensors").stat().st_mtime_ns
        retrain_stage(config, [arch], tmp_path / "run", StopFlag())
    assert (home / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    "command, at",
    (
        (["run"], "halving_stage"),
        (["run"], "draw_pictures"),
        (["search"], "draw_pictures"),
        (["retrain", "sf"], "compare_stage"),
    ),
)
def test_a_run_whose_folder_goes_ends_with_an_error(
    command: list[str], at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stages make folders anew, so that it would end as if all were there."""
    stage, run = getattr(pipeline, at), tmp_path / "run"

    def stage_without_folder(*arguments: object) -> object:
        run.rename(tmp_path / "elsewhere")
        shutil.copytree(tmp_path / "elsewhere", run, ignore=shutil.ignore_patterns(".lock"))
        return stage(*arguments)

    monkeypatch.setattr(pipeline, at, stage_without_folder)
    config = tiny_yaml(tmp_path / "tiny.yaml")
    done = call(*command, "--config", config, "--run.dir", run)
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        f"error: {run}: the run folder was removed or moved away while the run went on; move it back"
    )


@pytest.mark.parametrize("command", [["search"], ["retrain", "sf"]])
def test_rows_that_go_on_must_fit_before_anything_is_written(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "short.txt").write_bytes(b"some text " * 400)
    config = tiny_yaml(
        tmp_path / "tiny.yaml",
        data__name="text",
        data__path=str(tmp_path / "short.txt"),
        data__order="contiguous",
        data__batch_size=500,
    )
    line = error_line(call(*command, "--config", config, "--run.dir", tmp_path / "run"))
    assert "data.batch_size: 500 rows of 16 tokens that go on need 8,001" in line and not (tmp_path / "run").exists()
