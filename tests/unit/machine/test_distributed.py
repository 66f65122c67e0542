"""Several processes on one run, under torchrun itself: equal losses, one writer, agreed stops, deaths, and other
numbers of processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_runs import ROOT, command, environment, tiny, tiny_yaml

from nas.data.batches import crop_batch
from nas.data.corpus import load_corpus

LINES = {
    "search__relaxation": "sampled",
    "run__log_every": 5,
    "retrain__drawn": 1,
    "retrain__random": 1,
    "model__dropout": 0.0,
}
LONG = {
    **LINES,
    "search__steps": 4000,
    "search__warmup_steps": 3000,
    "run__checkpoint_every": 20,
    "search__evaluate_every": 1000,
}


def launch(*arguments: object, cwd: Path) -> subprocess.Popen:
    """A program under torchrun in two processes, not waited for."""
    line = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        *map(str, arguments),
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(line, cwd=cwd, env=environment(), start_new_session=True, **pipes)


def ended(process: subprocess.Popen, seconds: float = 120) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, err


def lines_of(run: Path) -> list[dict[str, Any]]:
    return (
        [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        if (run / "metrics.jsonl").exists()
        else []
    )


def assert_same_lines(one: Path, other: Path) -> None:
    """The metrics of two runs, equal to rounding."""
    assert len(lines_of(one)) == len(lines_of(other)) > 0
    for a, b in zip(lines_of(one), lines_of(other), strict=True):
        assert {**a, "tokens_per_second": 0} == {
            key: pytest.approx(b[key], abs=1e-5) if isinstance(b[key], float) else b[key] for key in b
        } | {"tokens_per_second": 0}


def children(process: subprocess.Popen) -> list[int]:
    """The processes that torchrun has started, by their numbers."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            parent = int((path.parent / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == process.pid and b"LOCAL_RANK=" in (content := path.read_bytes()):
                found.append((int(content.partition(b"LOCAL_RANK=")[2].partition(b"\0")[0]), int(path.parent.name)))
        except (OSError, ValueError):
            continue
    return [number for _, number in sorted(found)]


def wait_for(condition: Callable[[], bool], process: subprocess.Popen, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None or time.monotonic() > end:
            pytest.fail(f"waited in vain: {ended(process)}")
        time.sleep(0.02)


def test_steps_messages_and_checkpoints(tmp_path: Path) -> None:
    code, out, err = ended(launch(ROOT / "tests" / "group_checks.py", tmp_path / "done.json", cwd=ROOT / "tests"))
    assert code == 0, out + err
    assert json.loads((tmp_path / "done.json").read_text()) == ["check_messages", "check_steps", "check_checkpoints"]


@pytest.mark.parametrize("leave, code", [("pass", 0), ("sys.exit(3)", 3), ("sys.exit()", 0), ("sys.exit('why')", 1)])
def test_a_process_of_a_group_leaves_without_teardown(leave: str, code: int) -> None:
    """Python's own would now and then abort in one of gloo's threads; what was printed is there."""
    lines = (
        "import atexit, sys\nfrom nas.machine.exit_codes import without_teardown\natexit.register(print, 'teardown')\n"
        f"with without_teardown():\n    print('end'); {leave}"
    )
    done = subprocess.run([sys.executable, "-c", lines], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, "end\n", "why\n" if code == 1 else "")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process with four rows a step."""
    home = tmp_path_factory.mktemp("alone")
    done = command(
        "run", "--config", tiny_yaml(home / "tiny.yaml", **LINES, data__batch_size=4), "--run.dir", "run", cwd=home
    )
    assert done.returncode == 0, done.stderr
    return home / "run"


def test_two_processes_with_half_the_rows_do_what_one_does(alone: Path, tmp_path: Path) -> None:
    """Two rows in each process are fewer than candidates, so some groups have rows in one process only."""
    config = tiny_yaml(tmp_path / "tiny.yaml", **LINES, data__batch_size=2)
    code, out, err = ended(launch(ROOT / "search.py", "run", "--config", config, "--run.dir", "run", cwd=tmp_path))
    assert code == 0, err
    run = tmp_path / "run"
    assert {path.relative_to(run) for path in run.rglob("*")} == {path.relative_to(alone) for path in alone.rglob("*")}
    assert_same_lines(alone, run)
    for path in alone.glob("retrain/*/seed-0"):
        assert_same_lines(path, run / path.relative_to(alone))
    for path in (alone / "architectures").iterdir():
        assert (
            json.loads(path.read_text())["layers"]
            == json.loads((run / "architectures" / path.name).read_text())["layers"]
        )
    assert out.count("to take:") == out.count("report:") == 1 and err.count("run folder:") == 1
    assert err.count("| 0/20 [") == 1  # one bar


@pytest.mark.parametrize("dies", [0, 1])
def test_a_dead_process_ends_the_job_and_one_process_goes_on(alone: Path, tmp_path: Path, dies: int) -> None:
    config, run = tiny_yaml(tmp_path / "tiny.yaml", **LONG, data__batch_size=2), tmp_path / "run"
    process = launch(ROOT / "search.py", "search", "--config", config, "--run.dir", "run", cwd=tmp_path)
    wait_for(lambda: len(lines_of(run)) > 6, process)
    started = time.monotonic()
    os.kill(children(process)[dies], signal.SIGKILL)
    code, _out, err = ended(process)
    assert code != 0 and time.monotonic() - started < 60
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 - (dies == 0) and all(
        "another process of this job has ended" in line and "run.resume" in line for line in errors
    )
    assert f'File "{ROOT}' not in err  # torchrun prints a traceback of its own, we none
    step = torch.load(run / "checkpoint.pt", weights_only=True)["step"]
    assert step % 20 == 0 and step >= 20
    if dies == 1:
        config = tiny_yaml(tmp_path / "tiny.yaml", **LONG, data__batch_size=4)
        other = command(
            "search",
            "--config",
            config,
            "--run.dir",
            "run",
            "--run.resume",
            "true",
            "--data.batch_size",
            3,
            cwd=tmp_path,
        )
        assert other.returncode == 2 and "data.batch_size (was 2, now 3)" in other.stderr


def test_a_signal_stops_all_after_the_same_step_and_one_process_finishes(alone: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    slow = {**LINES, "search__steps": 20, "search__warmup_steps": 8, "run__checkpoint_every": 1000}
    config = tiny_yaml(tmp_path / "tiny.yaml", **slow, data__batch_size=2)
    process = launch(
        ROOT / "search.py", "run", "--config", config, "--run.dir", "run", "--run.checkpoint_every", 1000, cwd=tmp_path
    )
    wait_for(lambda: len(lines_of(run)) >= 1, process)
    os.kill(process.pid, signal.SIGTERM)
    _code, _out, err = ended(process)
    assert "error:" not in err and f'File "{ROOT}' not in err and (run / "checkpoint.pt").exists()
    one = tiny_yaml(tmp_path / "one.yaml", **LINES, data__batch_size=4)
    done = command("run", "--config", one, "--run.dir", "run", "--run.resume", "true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert_same_lines(alone, run)


def test_a_mistake_is_told_once(tmp_path: Path) -> None:
    code, _out, err = ended(launch(ROOT / "search.py", "run", "--model.heads", "7", cwd=tmp_path))
    assert (
        code != 0
        and [line for line in err.splitlines() if line.startswith("error:")]
        == [line for line in err.splitlines() if "model.heads" in line]
        and err.count("error: ") == 1
    )


def test_sharing_out_needs_several_processes(tmp_path: Path) -> None:
    done = command(
        "search", "--config", tiny_yaml(tmp_path / "tiny.yaml"), "--run.shard", "true", "--run.dir", "run", cwd=tmp_path
    )
    assert done.returncode == 2 and done.stderr.startswith("error: run.shard: ") and "torchrun" in done.stderr


def test_every_process_reads_its_own_rows() -> None:
    corpus = load_corpus(tiny().data)
    options = {"seq_len": 16, "seed": 0, "step": 3, "stream": "weights"}
    whole = crop_batch(corpus, "weights", batch_size=12, **options)
    parts = [crop_batch(corpus, "weights", batch_size=4, share=(rank, 3), **options) for rank in range(3)]
    assert np.array_equal(np.stack(parts, axis=1).reshape(whole.shape), whole)
