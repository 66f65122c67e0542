"""`--dry-run`: sizes counted, steps taken at full width on few rows, nothing written."""

import re
from pathlib import Path

import pytest
from tiny_runs import BLOCKS, call, error_line, tiny, tiny_yaml

from nas.stages.dry_run import ROWS, TOKENS, limited
from supernet import Supernet


@pytest.mark.parametrize("command", ["run", "search"])
def test_it_counts_takes_steps_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tiny_yaml(tmp_path / "tiny.yaml", data__batch_size=7, model__memory_len=5, model__position="relative")
    done = call(command, "--config", config, "--dry-run", "--run.dir", tmp_path / "run")
    assert done.returncode == 0 and done.stderr == "" and [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]
    settings = tiny().model.settings(256, 16)
    model = {**settings.to_mapping(), "memory_len": 5, "position": "relative", "task": "causal_lm", "layers": 2}
    counted = sum(parameter.numel() for parameter in Supernet(model, BLOCKS).weight_parameters())
    assert re.search(rf"^supernet +{counted:,} parameters", done.stdout, re.MULTILINE)
    assert (
        "2 steps on 2 x 16 tokens at full width: " in done.stdout
        and ("all of it" if command == "run" else "the search") + " would take about" in done.stdout
    )
    assert "7 x 16 tokens a step" in done.stdout


def test_published_vocabularies_stand_in_for_a_set_that_is_not_there(tmp_path: Path) -> None:
    config = tiny_yaml(
        tmp_path / "tiny.yaml",
        data__name="wikitext-2",
        data__tokens="words",
        model__cutoffs=[200, 30000],
        model__layers=1,
    )
    done = call("run", "--config", config, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert (
        "100,000 random tokens stand in for wikitext-2" in done.stdout
        and "vocabulary 33,278, 1 layers, d 8" in done.stdout
    )
    error_line(call("run", "--config", config))  # without the flag the text must be there


def test_it_is_for_searches_and_refuses_what_cannot_fit(tmp_path: Path) -> None:
    config = tiny_yaml(tmp_path / "tiny.yaml")
    assert (
        error_line(call("retrain", "sf", "--config", config, "--dry-run"))
        == "error: run.dry_run: run and search can be tried out, retrain cannot"
    )
    huge = tiny_yaml(tmp_path / "huge.yaml", model__d_model=2**15, model__d_inner=2**17, model__layers=100)
    assert "model.d_model: " in error_line(call("run", "--config", huge, "--dry-run"))
    rows = ("--data.order", "contiguous", "--data.batch_size", 10**6)
    assert "data.batch_size: 1000000 rows of 16 tokens that go on" in error_line(
        call("run", "--config", config, "--dry-run", *rows)
    )
    assert "search.warmup_steps" in error_line(
        call("run", "--config", config, "--dry-run", "--search.warmup_steps", 20)
    )


def test_the_limits_leave_the_widths() -> None:
    config = tiny(data__seq_len=200, data__batch_size=50, model__memory_len=300, model__position="relative")
    small = limited(config)
    assert (small.data.batch_size, small.data.seq_len, small.model.memory_len, small.model.max_len) == (
        ROWS,
        TOKENS,
        TOKENS,
        200,
    )
    assert (small.model.d_model, small.model.layers) == (config.model.d_model, config.model.layers)
