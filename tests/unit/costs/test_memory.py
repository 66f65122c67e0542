"""The check of memory before a run: a lower bound from the parameters, against what is free."""

import shutil
from pathlib import Path

import pytest
import torch
from tiny_runs import BLOCKS, call, error_line, tiny, tiny_yaml

from derive import Architecture
from nas.costs.memory import (
    BYTES_A_PARAMETER,
    SAVED_BYTES,
    available_memory,
    check_disk,
    check_evaluation_memory,
    check_latency_memory,
    check_search_memory,
    check_training_memory,
    supernet_parameters,
)
from supernet import Supernet
from supernet.errors import SettingError

CPU = torch.device("cpu")


def test_what_is_free_is_a_plausible_number() -> None:
    assert 2**20 < available_memory(CPU) < 2**50


def test_the_bound_counts_the_supernets_parameters() -> None:
    config = tiny(model__d_model=16)
    settings = config.model.settings(256, 16)
    net = Supernet({**settings.to_mapping(), "task": "causal_lm", "layers": 2}, BLOCKS)
    parameters = sum(parameter.numel() for parameter in net.weight_parameters())
    least = BYTES_A_PARAMETER * parameters + 3 * 4 * 3 * 16 * 256
    free = available_memory(CPU)
    processes = free // least + 1000
    check_search_memory(config, settings, CPU, 1)
    with pytest.raises(
        SettingError,
        match=rf"^model.d_model: the search takes at least .*{processes} processes of {parameters:,} param",
    ):
        check_search_memory(config, settings, CPU, processes)


def test_rows_that_run_apart_need_no_memory_together() -> None:
    config = tiny(data__batch_size=2**19, model__max_len=2**12, data__seq_len=2**12)
    with pytest.raises(SettingError, match="data.micro_batch_size"):
        check_search_memory(config, config.model.settings(256, 2**12), CPU, 1)
    config.data.micro_batch_size = 1
    check_search_memory(config, config.model.settings(256, 2**12), CPU, 1)


def test_what_is_measured_has_to_fit_as_well() -> None:
    config = tiny(latency__batch_size=2**20)
    check_latency_memory(tiny(), config.model.settings(256, 16), CPU)
    with pytest.raises(SettingError, match="^latency.batch_size: 1048576 rows of 16 tokens take at least"):
        check_latency_memory(config, config.model.settings(2**18, 16), CPU)


def test_the_largest_architecture_counts() -> None:
    config = tiny()
    small = Architecture.from_pattern("f", {"d_model": 8, "heads": 2})
    huge = Architecture.from_pattern("ff", {"d_model": 2**16, "heads": 2, "d_inner": 2**30}, name="huge")
    check_training_memory([small], config, CPU, 1)
    with pytest.raises(
        SettingError, match="^model.d_model: training huge takes at least .* GiB .* are free; lower model.d_model"
    ):
        check_training_memory([small, huge], config, CPU, 1)


def test_weights_to_evaluate_must_fit() -> None:
    check_evaluation_memory(Architecture.from_pattern("f"), CPU)
    huge = Architecture.from_pattern("ff", {"d_model": 2**20, "heads": 2, "d_inner": 2**30}, name="huge")
    with pytest.raises(SettingError, match="^model.d_model: the weights of huge take .* GiB, and .* GiB are free"):
        check_evaluation_memory(huge, CPU)


@pytest.mark.parametrize("command", [["run"], ["search"], ["retrain", "ff"]])
def test_a_run_that_cannot_fit_is_refused_before_it_writes(tmp_path, command: list[str]) -> None:
    config = tiny_yaml(tmp_path / "tiny.yaml", model__d_model=2**16, model__d_inner=2**18, model__layers=1000)
    line = error_line(call(*command, "--config", config, "--run.dir", tmp_path / "run"))
    assert "model.d_model" in line and "GiB" in line and not (tmp_path / "run").exists()


def test_the_disk_must_hold_every_search_and_training(tmp_path: Path) -> None:
    config = tiny(model__d_model=64, model__d_inner=2**11, search__seeds=1000, retrain__seeds=3)
    settings = config.model.settings(256, 16)
    free = shutil.disk_usage(tmp_path).free
    # this one fits where the tests can run at all
    assert supernet_parameters(config, settings) * SAVED_BYTES * 2001 < free
    check_disk(config, settings, [], tmp_path / "run" / "not made yet")
    huge = Architecture.from_pattern("ff", {"d_model": 2**16, "heads": 2, "d_inner": 2**30}, name="huge")
    with pytest.raises(
        SettingError,
        match=f"^run.dir: checkpoints and weights take at least .* GiB are free in {tmp_path}; give another",
    ):
        check_disk(config, settings, [huge], tmp_path / "run" / "not made yet")


def test_a_search_that_the_disk_cannot_hold_is_refused_before_it_writes(tmp_path: Path) -> None:
    # the memory holds one search of that size
    inner = shutil.disk_usage(tmp_path).free // (SAVED_BYTES * 2001 * 2 * 32 * 64) + 1
    config = tiny_yaml(
        tmp_path / "tiny.yaml",
        model__d_model=64,
        model__d_inner=inner,
        model__layers=32,
        search__seeds=1000,
        search__blocks=["feed_forward", "identity"],
    )
    line = error_line(call("search", "--config", config, "--run.dir", tmp_path / "run"))
    assert line.startswith("error: run.dir: checkpoints and weights take at least") and not (tmp_path / "run").exists()
