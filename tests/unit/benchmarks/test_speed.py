"""The side-by-side of steps runs at the smallest sizes and prints every row it promises."""

import re
import time
from functools import partial
from pathlib import Path

import pytest
import speed
import speed_growth
from speed_children import answer
from speed_memory import KINDS
from speed_sizes import CANDIDATES, Sizes, build_bench
from speed_steps import AVERAGE, FAIR, MIXTURE, PASSES, PEERS, PLAIN, SOFT, WHOLE, add_averages, interleaved, step_flops

from nas.config.sections import SearchConfig
from nas.costs.costs_table import build_costs
from supernet.gates import RELAXATIONS

SMALL = ["--layers", "2", "--d_model", "8", "--seq_len", "16", "--batch_size", "3", "--rounds", "2"]


def ratios(printed: str) -> dict[str, float]:
    """Row -> its ratio."""
    found = (re.match(r"(.{38}) .*ratio +([0-9.]+)", line) for line in printed.splitlines())
    return {line[1].rstrip(): float(line[2]) for line in found if line}


def test_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = (PLAIN, "softmax: weights")
    monkeypatch.setattr(speed, "print_memory", partial(speed.print_memory, kinds=kinds))
    speed.main([*SMALL, "--memory_d_model", "32", "--memory_seq_len", "256"])
    steps, memory = capsys.readouterr().out.split("memory at")
    own = [f"{one}: {step}" for one in RELAXATIONS for step in ("weights", "alphas", "average step")]
    found = ratios(steps)
    assert set(found) == {PLAIN, SOFT, MIXTURE, FAIR, WHOLE, *own} and found[PLAIN] == 1 and min(found.values()) > 0
    assert all(re.search(f"{re.escape(row)} +not measured", steps) for row in PEERS.values())
    assert re.search(r"matrix product: [0-9.]+ GFLOP/s", steps) and re.search(
        r"drawing a batch: .* of the plain step", steps
    )
    assert list(ratios(memory)) == list(kinds) and ratios(memory)["softmax: weights"] > 1.5
    assert "enwik8: not measured" in memory


def test_growth(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(speed_growth, "AXES", {"candidates": (2, 12), "layers": (1, 3)})
    speed.main([*SMALL, "--growth", str(tmp_path / "growth.png")])
    rows = re.findall(
        r"^(candidates|layers) +(\d+) .*ratio ([0-9.]+) .*ratio ([0-9.]+)$", capsys.readouterr().out, re.MULTILINE
    )
    assert [row[:2] for row in rows] == [("candidates", "2"), ("candidates", "12"), ("layers", "1"), ("layers", "3")]
    assert (tmp_path / "growth.png").stat().st_size > 10_000


def test_seconds_from_start_to_first_step(tmp_path: Path) -> None:
    command = (
        "search",
        f"--run.dir={tmp_path / 'run'}",
        "--run.workers=1",
        "--run.device=cpu",
        "--search.seeds=1",
        "--model.layers=2",
    )
    began = time.time()
    assert 0 < answer("speed_start.py", str(began), *command) < time.time() - began


def test_candidates_of_the_growth_cost_alike_however_many() -> None:
    means = []
    for count in speed_growth.AXES["candidates"]:
        bench = build_bench(Sizes(4, 64, 64, 2, speed_growth.candidates(count, 64), "cpu"))
        means.append(float(build_costs(bench.config, bench.settings).values.mean()))
    assert max(means) < 1.05 * min(means)


def test_operations_and_averages_of_steps() -> None:
    bench = build_bench(Sizes(4, 16, 32, 2, CANDIDATES[7], "cpu"))
    flops = step_flops(bench)
    assert flops[PLAIN] == [3 * interleaved(bench).flops_per_token(32) * 64]
    assert flops["softmax: weights"][0] * 2 == flops[SOFT][0] and set(flops) == set(PASSES)
    assert (
        flops["sampled: weights"] == flops[FAIR]
        and flops["sampled: weights"][0] < flops["gumbel: weights"][0] < flops[MIXTURE][0]
    )
    times = {name: [1.0, 2.0] for name in PASSES}
    add_averages(times, tuple(RELAXATIONS))
    default = SearchConfig()
    average = 1 + 1 / default.arch_every
    whole = (default.warmup_steps + (default.steps - default.warmup_steps) * average) / default.steps
    assert times[AVERAGE] == [average, 2 * average] and times[WHOLE] == pytest.approx([whole, 2 * whole])


def test_kinds_of_memory_are_steps() -> None:
    assert {step for *_, step, _ in KINDS.values()} < set(PASSES)
