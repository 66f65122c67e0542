"""Whether a run survives SIGKILL at any moment: python benchmarks/soak.py WORK [--kills 50] [--seed 0]

One real run that nothing interrupts (two search seeds, halving, retraining, two worker processes), then the same run
again and again, its whole process group killed at random moments and resumed until it is through, until so many kills
have been made. Each finished run must equal the first to the byte. Prints a line a run; exit code 1 where one differs.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[1]
CONFIG: dict[str, dict[str, Any]] = {
    "run": {"device": "cpu", "log_every": 3, "checkpoint_every": 7, "workers": 2},
    "data": {"seq_len": 16, "batch_size": 3},
    "model": {"layers": 3, "d_model": 8, "heads": 2, "d_inner": 10, "dropout": 0.1},
    "search": {
        "blocks": ["self_attention", "random_synthesizer", "feed_forward", "identity"],
        "steps": 80,
        "warmup_steps": 30,
        "seeds": 2,
        "budget": 0.5,
        "evaluate_every": 12,
        "evaluate_tokens": 256,
    },
    "retrain": {
        "steps": 50,
        "seeds": 1,
        "architectures": ["argmax"],
        "against": ["interleaved"],
        "drawn": 2,
        "random": 2,
        "rungs": [0.5],
        "evaluate_every": 12,
        "evaluate_tokens": 256,
        "final_tokens": 512,
        "rung_tokens": 256,
    },
}
RUN = "run"  # the folder's name in every experiment, since files record it
MEASURED = ("tokens_per_second", "latency_ms", "predicted_latency_ms", "latency")  # times, which no two runs share
# share of the uninterrupted run that a kill can cost, and a resume must do in one go: all pictures and the page
INDIVISIBLE = 0.3


class Ended(NamedTuple):
    """How a process ended."""

    code: int
    errors: list[str]
    stderr: str


def write_config(home: Path) -> Path:
    """The tiny configuration in a new folder, in which the run's folder will lie."""
    home.mkdir(parents=True)
    path = home / "config.yaml"
    path.write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    return path


def start(home: Path, **options: Any) -> subprocess.Popen:
    """`search.py run` on the run in `home`, new or to be gone on with, in a process group of its own."""
    arguments = ["run", "--config", str(home / "config.yaml"), "--run.dir", RUN, "--run.resume", "true"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with open(home / "stderr", "w", encoding="utf-8") as errors:
        return subprocess.Popen(
            [sys.executable, str(ROOT / "search.py"), *arguments],
            cwd=home,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
            **options,
        )


def ended(process: subprocess.Popen, home: Path) -> Ended:
    """Wait for a process; its exit code and the `error:` lines on its standard error."""
    process.wait()
    text = (home / "stderr").read_text(encoding="utf-8", errors="replace")
    return Ended(process.returncode, [line for line in text.splitlines() if line.startswith("error:")], text)


def without_times(value: Any) -> Any:
    """A JSON value without what was measured with a clock."""
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in MEASURED}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def results(run: Path) -> dict[str, Any]:
    """All files of a run that must not depend on kills, by path: the bytes, or where times stand in them the rest."""
    found: dict[str, Any] = {}
    for path in sorted(run.rglob("*")):
        name = str(path.relative_to(run))
        if (
            path.name
            in (
                "probabilities.json",
                "layouts.json",
                "halving.json",
                "agreement.json",
                "test.json",
                "data.json",
            )
            or path.name in ("model.safetensors", "result.json", "config.yaml")
            or path.name.startswith("rung-")
        ):
            found[name] = path.read_bytes()
        elif path.name in ("comparison.json", "architecture.json") or path.parent.name == "architectures":
            found[name] = without_times(json.loads(path.read_text(encoding="utf-8")))
        elif path.name == "metrics.jsonl":
            found[name] = [without_times(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
        elif path.name.startswith(".") and path.name != ".lock":
            found[name] = "a torn file"
        elif (
            path.is_file() and path.suffix != ".pt" and path.name != "live.png"
        ):  # drawn only by a search that takes long enough
            found[name] = "is there"  # pictures and pages, whose bytes hold times
    return found


def differences(whole: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Names of the files that are not equal in both, at most five."""
    return [name for name in sorted({*whole, *other}) if whole.get(name) != other.get(name)][:5]


def stage(run: Path) -> str:
    """How far a run has come, by its files."""
    if not (run / "config.yaml").exists():
        return "start"
    for name, file in (("search", "agreement.json"), ("halving", "halving.json"), ("retraining", "comparison.json")):
        if not (run / file).exists():
            return name
    return "pictures"


def moments(whole_seconds: float, starting: float, chance: random.Random) -> Iterator[float]:
    """Seconds after each start at which to kill: uniform over most of what the run has left, so that a run is killed
    several times.

    `starting` are the seconds that a process takes before it goes on. What is taken to be left at least grows with
    every kill, so that a machine that has become busier comes through too.
    """
    left, least = whole_seconds, starting + INDIVISIBLE * whole_seconds
    while True:
        moment = chance.uniform(0, 0.8 * left)
        yield moment
        left, least = max(least, left - max(0.0, moment - starting)), 1.1 * least


def killed_run(home: Path, whole_seconds: float, starting: float, chance: random.Random) -> tuple[list[str], Ended]:
    """Start, kill and resume until the run ends by itself: the stage at each kill, and how it ended."""
    write_config(home)
    hit: list[str] = []
    for moment in moments(whole_seconds, starting, chance):
        process = start(home)
        try:
            process.wait(timeout=moment)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        last = ended(process, home)
        if last.code != -signal.SIGKILL:
            return hit, last
        hit.append(stage(home / RUN))
    raise AssertionError("moments are endless")


def whole_run(home: Path) -> tuple[dict[str, Any], float, float]:
    """The run that nothing interrupts: its results, its seconds, and those of a start that finds it finished."""
    write_config(home)
    began = time.monotonic()
    last = ended(start(home), home)
    if last.code:
        sys.exit(f"the uninterrupted run failed with {last.code}: {last.stderr[-500:]}")
    seconds, began = time.monotonic() - began, time.monotonic()
    if ended(start(home), home).code:
        sys.exit("the finished run could not be looked at again")
    return results(home / RUN), seconds, time.monotonic() - began


def main() -> None:
    """Kill and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("WORK", type=Path, help="folder to make for the runs; those that differ stay in it")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    work, chance = options.WORK.resolve(), random.Random(options.seed)
    whole, seconds, starting = whole_run(work / "whole")
    print(f"uninterrupted: {seconds:.1f} s, a start {starting:.1f} s, {len(whole)} files to compare", flush=True)
    kills, runs, equal = 0, 0, 0
    where: Counter[str] = Counter()
    while kills < options.kills:
        runs += 1
        home = work / f"killed-{runs}"
        hit, last = killed_run(home, seconds, starting, chance)
        wrong = (
            differences(whole, results(home / RUN)) if last.code == 0 else [f"exit {last.code}: {last.stderr[-500:]}"]
        )
        kills, equal = kills + len(hit), equal + (not wrong)
        where.update(hit)
        print(
            f"run {runs}: {len(hit)} kills ({', '.join(hit)}): {'equal' if not wrong else f'differs: {wrong}'}",
            flush=True,
        )
        if not wrong:
            shutil.rmtree(home)
    print(f"kills by stage: {dict(where)}")
    lost = "nothing lost" if equal == runs else f"{runs - equal} differ"
    print(f"{kills} kills in {runs} runs: {equal} of {runs} equal, {lost}")
    sys.exit(equal != runs)


if __name__ == "__main__":
    main()
