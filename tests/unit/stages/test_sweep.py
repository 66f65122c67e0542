"""The sweep: its verdict on planted losses, and a real one on the debug run."""

import shutil
from pathlib import Path

import pytest
from tiny_runs import command

from derive import Architecture
from derive.strict_json import read_json
from nas.stages.sweep import SweepPoint, judge_sweep


def point(ratio: float, pattern: str) -> SweepPoint:
    return SweepPoint(2 / 3, ratio, Architecture.from_pattern(pattern, name=f"ratio-{ratio:g}"))


def rows(losses: dict[str, list[float]]) -> list[dict]:
    return [
        {"name": name, "seed": seed, "held_out_loss": loss, "relative_flops": 0.5, "standard_error": 0.01}
        for name, values in losses.items()
        for seed, loss in enumerate(values)
    ]


POINTS = [point(2, "sfsf"), point(4, "sfff")]


def test_the_largest_ratio_within_the_noise_is_named() -> None:
    found = judge_sweep(
        POINTS, rows({"interleaved": [2.0, 2.02], "ratio-2": [1.99, 2.01], "ratio-4": [2.01, 2.03]}), "interleaved"
    )
    # pooled variance 0.0002, two seeds: noise 2 * sqrt(2 * 0.0002 / 2)
    assert found["baseline"]["noise"] == pytest.approx(2 * 0.0002**0.5)
    assert (found["chosen"], found["largest_ratio"]) == ("ratio-4", 4)


def test_a_layout_outside_the_band_is_not_chosen() -> None:
    found = judge_sweep(
        POINTS, rows({"interleaved": [2.0, 2.02], "ratio-2": [1.99, 2.01], "ratio-4": [2.21, 2.23]}), "interleaved"
    )
    assert found["chosen"] == "ratio-2"
    assert [entry["within_band"] for entry in found["points"]] == [True, False]


def test_none_within_the_band() -> None:
    found = judge_sweep(POINTS, rows({"interleaved": [2.0], "ratio-2": [2.5], "ratio-4": [2.6]}), "interleaved")
    assert found["chosen"] is None and found["largest_ratio"] is None
    assert found["baseline"]["noise"] == pytest.approx(2 * 2**0.5 * 0.01)  # one seed: the evaluation's error alone


def test_a_real_sweep_leaves_its_table_file_and_architecture(debug_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(debug_run, run)
    done = command("sweep", run, "--sweep.ratios", "[2, 4]", "--retrain.steps", 4, "--retrain.seeds", 2, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = read_json(run / "sweep" / "sweep.json")
    assert [entry["ratio"] for entry in found["points"]] == [2, 4] and found["seeds"] == 2
    assert "largest ratio within the band" in done.stdout or "no ratio stays" in done.stdout
    if found["chosen"]:
        arch = Architecture.load(run / "architectures" / "par-sweep.json")
        assert (
            arch.evidence["rules"][0]["rule"] == "sweep"
            and arch.evidence["rules"][0]["value"] == found["largest_ratio"]
        )
