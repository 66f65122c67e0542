"""Processes: device and precision chosen or refused, seeds, and jobs side by side that fail, stop and die as they
should."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tiny_runs import CPU, ROOT, environment

from nas.config.sections import RunConfig
from nas.machine.device import Machine, choose_machine
from nas.machine.process import count_cores, count_workers, generator_from, run_jobs, seed_dropout, seed_from
from nas.machine.stop import StopFlag
from supernet.errors import RunFailed, SettingError, UserError


def write_job(folder: Path, name: str, text: str, *, slot: int, stop: StopFlag) -> None:
    """Writes who did it and with how many threads."""
    (folder / name).write_text(f"{text} {slot} {torch.get_num_threads()} {os.getpid()}")


def failing_job(kind: str, folder: Path, *, slot: int, stop: StopFlag) -> None:
    """Fails in the way that is asked for, or waits to be stopped."""
    (folder / f"started {slot}").touch()
    if kind == "user":
        raise SettingError("model.heads", "no\ngood")
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    while stop.signal_number is None:
        time.sleep(0.01)
        (folder / f"alive {slot}").write_text(str(time.time()))
    (folder / f"stopped {slot}").touch()
    stop.check()


def test_dropout_is_drawn_as_after_torchs_own_seeding_and_apart_for_each_process() -> None:
    def draw(machine: Machine) -> list[float]:
        seed_dropout(machine, 1, "dropout", 7)
        return torch.rand(3).tolist()

    torch.manual_seed(seed_from(1, "dropout", 7))
    assert torch.rand(3).tolist() == draw(CPU) != draw(dataclasses.replace(CPU, rank=1))


def test_one_worker_runs_here_and_several_elsewhere(tmp_path: Path) -> None:
    jobs = [(tmp_path, f"{name}{k}", "text") for k in range(3) for name in "a"]
    run_jobs(write_job, jobs, 1, StopFlag())
    assert {(tmp_path / f"a{k}").read_text().split()[-1] for k in range(3)} == {str(os.getpid())}
    run_jobs(write_job, jobs, 2, StopFlag())
    words = [(tmp_path / f"a{k}").read_text().split() for k in range(3)]
    assert str(os.getpid()) not in {word[-1] for word in words} and len({word[-1] for word in words}) == 2
    assert {word[1] for word in words} == {"0", "1"}
    assert {word[2] for word in words} == {str(max(1, count_cores() // 2))}


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("user", UserError, "^model.heads: no\ngood$"),
        (
            "killed",
            RunFailed,
            "^a worker process was killed by signal 9; its last checkpoint is kept; when memory is short, set "
            "run.workers",
        ),
    ],
)
def test_a_failing_job_stops_the_others_and_says_why_once(
    tmp_path: Path, kind: str, error: type, message: str, capfd: pytest.CaptureFixture
) -> None:
    with pytest.raises(error, match=message):
        run_jobs(failing_job, [("wait", tmp_path), (kind, tmp_path), ("wait", tmp_path)], 2, StopFlag())
    assert capfd.readouterr() == ("", "")  # the parent prints the one line
    assert not (tmp_path / "stopped 1").exists()  # the third job never began
    assert (tmp_path / "started 0").exists() <= (tmp_path / "stopped 0").exists()


SCRIPT = """
import sys
sys.path[:0] = {paths!r}
from pathlib import Path
from nas.machine.exit_codes import exit_codes
from nas.machine.process import run_jobs
from nas.machine.stop import StopFlag
from test_process import failing_job
if __name__ == "__main__":
    with exit_codes():
        run_jobs(failing_job, [("wait", Path(sys.argv[1])), ("wait", Path(sys.argv[1]))], 2, StopFlag().install())
"""


def start_parent(folder: Path) -> subprocess.Popen:
    """A process with two workers that wait to be stopped."""
    script = folder / "parent.py"
    script.write_text(SCRIPT.format(paths=[str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)]))
    parent = subprocess.Popen(
        [sys.executable, script, folder], env=environment(), stderr=subprocess.PIPE, start_new_session=True
    )
    wait_for(lambda: (folder / "alive 0").exists() and (folder / "alive 1").exists())
    return parent


def wait_for(condition: object, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """Else they would go on writing into a run that somebody resumes."""
    parent = start_parent(tmp_path)
    parent.kill()
    parent.communicate()
    wait_for(lambda: time.time() - max(float((tmp_path / f"alive {k}").read_text() or 0) for k in (0, 1)) > 1)
    assert not (tmp_path / "stopped 0").exists()


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cpu:0", "cuda:-1", "mps:0", "", "cuda: 0"])
def test_a_device_that_is_no_device(device: str) -> None:
    with pytest.raises(SettingError, match="^run.device: "):
        choose_machine(RunConfig(device=device))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_device_that_is_not_here() -> None:
    with pytest.raises(SettingError, match="^run.device: cuda:1 asks for a GPU and torch sees none"):
        choose_machine(RunConfig(device="cuda:1"))
    assert choose_machine(RunConfig()).device.type == "cpu"


def test_precision() -> None:
    kinds = {name: choose_machine(RunConfig(device="cpu", precision=name)) for name in ("auto", "fp32", "bf16", "fp16")}
    assert [machine.dtype for machine in kinds.values()] == [
        torch.float32,
        torch.float32,
        torch.bfloat16,
        torch.float16,
    ]
    x = torch.ones(2, 2)
    for machine in kinds.values():
        with machine.autocast():
            assert (x @ x).dtype == machine.dtype
    assert [machine.scaler().is_enabled() for machine in kinds.values()] == [False, False, False, True]


def test_seeds_depend_on_every_part_and_on_nothing_else() -> None:
    seeds = [
        seed_from(*parts) for parts in [(0, "a", 1), (0, "a", 2), (1, "a", 1), (0, "b", 1), (0, "a1"), ("0", "a", 1)]
    ]
    assert len(set(seeds)) == len(seeds) and all(0 <= seed < 2**63 for seed in seeds)
    assert seed_from(0, "a", 1) == seeds[0] == 7965780462979794708
    drawn = torch.rand(3, generator=generator_from(0, "a", 1))
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(3, generator=generator_from(0, "a", 1)))


def test_workers_are_at_most_the_jobs_and_by_default_the_cores() -> None:
    assert count_workers(RunConfig(device="cpu", workers=3), 2) == 2
    assert count_workers(RunConfig(device="cpu", workers=3), 8) == 3
    assert count_workers(RunConfig(device="cpu"), 1000) == count_cores()
    assert count_workers(RunConfig(device="cuda"), 8) == 1 and count_workers(RunConfig(device="cpu"), 0) == 1
