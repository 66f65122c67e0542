"""The program as real processes: exit codes, streams, files, kills and resumes."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tiny_runs import ROOT, call, command, environment, error_line, start, tiny_yaml

from derive import Architecture
from nas.commands import command_line
from nas.config.command_keys import SECTIONS

FILES = [
    "config.yaml",
    "metrics.jsonl",
    "probabilities.json",
    "data.json",
    "latency.json",
    "checkpoint.pt",
    "architectures/argmax.json",
    "architectures/par-rule.json",
    "architectures/budget.json",
    "architectures/best.json",
    "comparison.json",
    "comparison.csv",
    "report.html",
    "retrain/par/seed-0/metrics.jsonl",
    "retrain/par/seed-0/model.safetensors",
    "retrain/par/seed-0/architecture.json",
]
SLOW = {"search__steps": 60, "search__warmup_steps": 20, "retrain__steps": 60, "run__checkpoint_every": 7}
HALVING = {"retrain__drawn": 2, "retrain__random": 1}


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)


def lines_of(path: Path) -> list[dict[str, Any]]:
    lines = (
        [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]
        if path.exists()
        else []
    )
    return [{key: value for key, value in line.items() if key != "tokens_per_second"} for line in lines]


def wait_for(process: subprocess.Popen, condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"waited in vain; exit {process.returncode}\n{out}\n{err}")
        time.sleep(0.003)


def results(run: Path) -> dict[str, Any]:
    """All that must not depend on kills: no times in it."""
    rows = [{key: row[key] for key in row if not key.endswith("latency_ms")} for row in read(run / "comparison.json")]
    architectures = {
        path.name: {**read(path), "provenance": None} for path in sorted((run / "architectures").glob("*.json"))
    }
    for arch in architectures.values():
        arch.get("cost", {}).pop("latency_ms", None)
        arch.get("cost", {}).get("relative_to_interleaved", {}).pop("latency", None)
    return {
        "probabilities": (run / "probabilities.json").read_bytes(),
        "rows": rows,
        "architectures": architectures,
        "metrics": lines_of(run / "metrics.jsonl"),
        "halving": read(run / "halving.json"),
        "retrain": {
            str(path.relative_to(run)): lines_of(path) for path in sorted(run.glob("retrain/*/*/metrics.jsonl"))
        },
        "weights": {str(path.relative_to(run)): path.read_bytes() for path in sorted(run.rglob("model.safetensors"))},
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run that nothing interrupts."""
    home = tmp_path_factory.mktemp("whole")
    done = command("run", "--config", tiny_yaml(home / "tiny.yaml", **SLOW, **HALVING), "--run.dir", "run", cwd=home)
    assert done.returncode == 0, done.stderr
    return home / "run"


def test_killed_at_several_moments_and_resumed_equals_uninterrupted(whole: Path, tmp_path: Path) -> None:
    config = tiny_yaml(tmp_path / "tiny.yaml", **SLOW, **HALVING)
    run, options = tmp_path / "run", ("--config", config, "--run.dir", "run", "--run.resume", "true")
    moments: list[Callable[[], bool]] = [
        # in the search
        lambda: lines_of(run / "metrics.jsonl")[-1:] != [] and lines_of(run / "metrics.jsonl")[-1]["step"] > 27,
        lambda: len(list(run.glob("retrain/*/seed-0/rung-*.json"))) >= 2,  # in the halving
        lambda: len(lines_of(run / "retrain/argmax/seed-0/metrics.jsonl")) >= 4,  # in the retraining
    ]
    for moment in moments:
        process = start("run", *options, cwd=tmp_path)
        wait_for(process, moment)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL and not (run / "report.html").exists()
    done = command("run", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert results(run) == results(whole)
    assert not [path for path in run.rglob(".*") if path.name != ".lock"]  # no torn file is left


def test_a_finished_run_is_left_as_it_is(whole: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file() and path.name != ".lock"}
    done = call("run", "--config", whole / "config.yaml", "--run.dir", whole, "--run.resume", "true")
    assert done.returncode == 0 and "finished" in done.stderr and "held" not in done.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_the_runs_own_configuration_is_valid_input_and_first_on_disk(
    whole: Path, capsys: pytest.CaptureFixture
) -> None:
    path = whole / "config.yaml"
    done = call("run", "--config", path, "--print_config")
    assert done.returncode == 0 and done.stderr == ""
    values = yaml.safe_load(path.read_text())
    assert {name: values[name] for name in command_line.ALL} == yaml.safe_load(done.stdout) and set(values) == set(
        SECTIONS
    )
    others = [file.stat().st_mtime_ns for file in whole.rglob("*") if file.is_file() and file.name != ".lock"]
    assert path.stat().st_mtime_ns == min(others)


def test_only_what_is_asked_for_is_retrained(whole: Path) -> None:
    left = read(whole / "halving.json")["left"]
    assert sorted(path.name for path in (whole / "retrain").iterdir()) == sorted(["argmax", "interleaved", *left])
    assert {path.stem for path in (whole / "architectures").glob("*.json")} == {
        "argmax",
        "par-rule",
        "budget",
        "best",
        *left,
    }


def test_a_torn_checkpoint_falls_back_with_a_warning_and_the_same_end(whole: Path, tmp_path: Path) -> None:
    run, torn = tmp_path / "run", tmp_path / "torn"
    shutil.copytree(whole, run, ignore=shutil.ignore_patterns("probabilities.json", "report.html"))
    (run / "checkpoint.pt").write_bytes((whole / "checkpoint.pt").read_bytes()[:-100])
    shutil.copytree(run, torn)
    options = ("--config", whole / "config.yaml", "--run.resume", "true", "--run.dir")
    done = call("search", *options, run)
    assert done.returncode == 0 and "warning: " in done.stderr and "checkpoint.pt is corrupt" in done.stderr
    assert (run / "probabilities.json").read_bytes() == (whole / "probabilities.json").read_bytes()
    assert lines_of(run / "metrics.jsonl") == lines_of(whole / "metrics.jsonl")
    (torn / "checkpoint.previous.pt").write_bytes(bytes(1000))
    done = call("search", *options, torn)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 2 and len(errors) == 1 and "checkpoint.pt" in errors[0] and "Traceback" not in done.stderr


def stopped(process: subprocess.Popen, group: bool, number: int) -> tuple[int, str]:
    (os.killpg if group else os.kill)(process.pid, number)
    _, err = process.communicate(timeout=120)
    return process.returncode, err


def test_ctrl_c_while_workers_retrain_leaves_checkpoints(tmp_path: Path) -> None:
    """A terminal sends SIGINT to the workers too."""
    changes = {**SLOW, "run__workers": 2, "retrain__steps": 600, "run__checkpoint_every": 1000}
    options = ("--config", tiny_yaml(tmp_path / "tiny.yaml", **changes), "--run.dir", "run")
    process = start("retrain", "ff", *options, cwd=tmp_path, start_new_session=True)
    homes = [tmp_path / "run" / "retrain" / name / "seed-0" for name in ("ff", "interleaved")]
    wait_for(process, lambda: all(len(lines_of(home / "metrics.jsonl")) > 3 for home in homes))
    code, err = stopped(process, True, signal.SIGINT)
    assert code == 130 and "Traceback" not in err and "error:" not in err
    assert all((home / "checkpoint.pt").exists() or (home / "result.json").exists() for home in homes)
    assert (
        any((home / "checkpoint.pt").exists() for home in homes) and not (tmp_path / "run" / "comparison.json").exists()
    )


def test_two_seeds_have_their_folders_and_the_parent_what_they_share(tmp_path: Path) -> None:
    config = tiny_yaml(tmp_path / "tiny.yaml", run__seed=3, search__seeds=2, retrain__seeds=2)
    run = tmp_path / "run"
    done = call("run", "--config", config, "--run.dir", run)
    assert done.returncode == 0, done.stderr
    for seed in (3, 4):
        home = run / f"seed-{seed}"
        names = ("config.yaml", "metrics.jsonl", "probabilities.json", "data.json", "latency.json", "checkpoint.pt")
        assert all((home / name).exists() for name in names)
        steps = [line["step"] for line in lines_of(home / "metrics.jsonl")]
        assert steps == sorted(set(steps)) and (steps[0], steps[-1]) == (1, 20)
        assert read(home / "probabilities.json")["seed"] == seed
        assert (run / "retrain" / "argmax" / f"seed-{seed}" / "model.safetensors").exists()
    assert (run / "seed-3" / "probabilities.json").read_bytes() != (run / "seed-4" / "probabilities.json").read_bytes()
    shared = (
        "config.yaml",
        "data.json",
        "agreement.json",
        "report.html",
        "architectures/argmax.json",
        "architectures/best.json",
    )
    assert all((run / name).exists() for name in shared) and not (run / "probabilities.json").exists()
    assert read(run / "agreement.json")["seeds"] == [3, 4] and {
        row["seed"] for row in read(run / "comparison.json")
    } == {3, 4}
    again = call("derive", run)
    assert again.returncode == 0 and again.stdout.startswith(("converged", "not converged"))


def test_the_debug_preset_leaves_every_file_of_the_contract(debug_run: Path) -> None:
    assert [name for name in FILES if not (debug_run / name).exists()] == []
    assert list((debug_run / "plots").glob("*.png")) and list((debug_run / "plots").glob("*.svg"))
    for path in debug_run.rglob("*.json"):
        read(path)
    home = str(debug_run.parent)
    for path in (debug_run / "architectures").glob("*.json"):
        assert home not in path.read_text() and Architecture.load(path).pattern
    data = read(debug_run / "data.json")
    ranges = [data["parts"][part]["range"] for part in ("weights", "alphas", "held_out", "test")]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ranges)) and data["vocab_size"] == 256
    latency = read(debug_run / "latency.json")
    assert {"device", "mode", "dtype", "batch", "lengths"} <= set(latency)
    assert (
        torch.load(debug_run / "checkpoint.pt", weights_only=True)["step"]
        == lines_of(debug_run / "metrics.jsonl")[-1]["step"]
    )


def test_results_go_to_standard_output_and_progress_to_standard_error(debug_run: Path) -> None:
    out, err = ((debug_run.parent / name).read_text() for name in ("stdout", "stderr"))
    assert (
        out.startswith(("converged", "not converged"))
        and "report.html" in out
        and "it/s" not in out
        and "%|" not in out
    )
    assert "interleaved" in out and "loss" in out.splitlines()[1]
    assert "%|" in err and "run folder" in err and "warning" not in err.lower() and "perplexity" not in err


def test_a_loss_that_is_not_finite_ends_with_3_and_one_error_line(tmp_path: Path) -> None:
    config = tiny_yaml(
        tmp_path / "tiny.yaml", search__steps=200, search__weight_lr=1e30, search__clip=1e30, run__checkpoint_every=1000
    )
    done = call("search", "--config", config, "--run.dir", tmp_path / "run")
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    assert done.returncode == 3 and len(errors) == 1 and errors[0].startswith("error: ") and "not finite" in errors[0]
    assert "Traceback" not in done.stderr and done.stdout == ""


BAD = [
    (["run", "--search.stepz", "3"], "search.stepz"),
    (["runn"], "runn"),
    (["run", "--config", "{tmp}/none.yaml"], "none.yaml"),
    (["run", "--data.name", "text"], "data.path"),
    (["run", "--data.name", "txt"], "data.name"),
    (["run", "--data.name", "text", "--data.path", "{tmp}/none.txt"], "none.txt"),
    (["run", "--data.path", "{tmp}"], "data.path"),
    (["run", "--data.name", "enwik8", "--data.path", "{tmp}"], "enwik8"),
    (["run", "--data.tokens", "letters"], "data.tokens"),
    (["run", "--data.seq_len", "1000000"], "data.seq_len"),
    (["run", "--run.device", "tpu"], "run.device"),
    (["run", "--run.resume", "true"], "run.dir"),
    (["run", "--run.dir", "{tmp}/file"], "run.dir"),
    (["run", "--run.dir", "{tmp}/file/below"], "run.dir"),
    (["run", "--run.dir", "{tmp}"], "run.dir"),
    (["run", "--search.blocks", "[identity, feed_forwrd]"], "feed_forwrd"),
    (["run", "--search.budget", "1.01"], "search.budget"),
    (["run", "--search.blocks", "[self_attention, feed_forward]", "--search.budget", "0.01"], "cannot be met"),
    (["run", "--derive.rules", "[{block: nothing}]"], "derive.rules[0]"),
    (["run", "--retrain.against", "[sfz]"], "retrain.against"),
    (["run", "--retrain.architectures", "[best]"], "retrain.architectures"),
    (["search", "--search.seeds", "0"], "search.seeds"),
    (["derive", "{tmp}/none"], "none"),
    (["derive"], "RUN"),
    (["plot", "{tmp}"], "run folder"),
    (["show", "par-bas"], "par-bas"),
    (["show", "par", "--model.heads", "3", "--model.d_model", "64"], "model.heads"),
    (["evaluate", "{tmp}/file"], "architecture.json"),
    (["retrain"], "ARCH"),
    (["latency", "--search.blocks", "[identity]"], "search.blocks"),
    (["run", "--model.layers", "2000"], "model.layers"),
    (["run", "--data.batch_size", "0"], "data.batch_size"),
]


@pytest.mark.parametrize(
    ("arguments", "words"), BAD, ids=lambda value: " ".join(value) if isinstance(value, list) else value
)
def test_bad_input_is_2_one_line_and_nothing_written(
    tmp_path: Path, arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.chdir(tmp_path)
    line = error_line(call(*(argument.replace("{tmp}", str(tmp_path)) for argument in arguments)))
    assert words in line and "Traceback" not in line
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "x"


def test_bad_input_to_a_real_process(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_bytes(b"search: {steps: \xff}")
    assert "c.yaml" in error_line(command("run", "--config", "c.yaml", cwd=tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.yaml"]


def test_a_run_is_neither_overwritten_nor_gone_on_with_under_other_settings(whole: Path) -> None:
    line = error_line(call("run", "--config", whole / "config.yaml", "--run.dir", whole))
    assert "run.dir" in line and "run.resume" in line
    changed = ("--run.resume", "true", "--search.steps", 61, "--retrain.lr", "1e-4")
    line = error_line(call("run", "--config", whole / "config.yaml", "--run.dir", whole, *changed))
    assert "search.steps" in line and "retrain.lr" in line


def test_help_of_every_command() -> None:
    overview = call("--help")
    assert overview.returncode == 0 and overview.stderr == ""
    for name in command_line.COMMANDS:
        assert name in overview.stdout
        done = call(name, "--help")
        assert done.returncode == 0 and done.stderr == "" and "usage:" in done.stdout
        for section in command_line.COMMANDS[name].sections:
            assert f"--{section}." in done.stdout


def test_a_reader_that_leaves_is_no_failure(tmp_path: Path) -> None:
    line = f"{sys.executable} {ROOT / 'search.py'} show par-large | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "" and done.stdout.startswith("name")


def test_closed_streams_are_no_failure(tmp_path: Path) -> None:
    script = "import sys, search; search.main(['show', 'par']); from tqdm import tqdm; list(tqdm(range(3)))"
    line = f'{sys.executable} -c "{script}" >&- 2>&-'
    assert subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment()).returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_behind_standard_output_is_3(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        line = [sys.executable, str(ROOT / "search.py"), "show", "par"]
        done = subprocess.run(line, cwd=tmp_path, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 3 and done.stderr.count("\n") == 1 and "No space left" in done.stderr


def test_a_second_process_on_a_run_is_refused_and_sigterm_leaves_a_checkpoint(tmp_path: Path) -> None:
    config = tiny_yaml(tmp_path / "tiny.yaml", **{**SLOW, "search__steps": 5000, "run__checkpoint_every": 10000})
    process = start("search", "--config", config, "--run.dir", "run", cwd=tmp_path)
    wait_for(process, lambda: bool(lines_of(tmp_path / "run" / "metrics.jsonl")))
    line = error_line(call("search", "--config", config, "--run.dir", tmp_path / "run", "--run.resume", "true"))
    assert "run.dir" in line and "another process" in line
    code, err = stopped(process, False, signal.SIGTERM)
    assert code == 143 and "Traceback" not in err and "error:" not in err
    step = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["step"]
    assert 0 < step < 5000 and lines_of(tmp_path / "run" / "metrics.jsonl")[-1]["step"] <= step
