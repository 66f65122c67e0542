"""Latency: a row for every candidate and for the baseline, and times that order blocks as their work does."""

import pytest
import torch

from derive import Architecture, build
from nas.latency import device_name, measure_candidates, measure_model
from tiny_runs import CPU, tiny


def test_the_table_is_as_the_contract_has_it() -> None:
    blocks = ["random_synthesizer", "feed_forward[d_inner=4000]", "identity"]
    config = tiny(search__blocks=blocks, data__seq_len=12, model__max_len=16)
    table = measure_candidates(config, config.model.settings(256, 12), CPU)
    assert list(table["candidates"]) == [*blocks, "self_attention", "feed_forward"]
    assert (table["device"], table["mode"], table["dtype"], table["batch"]) == ("cpu", "eager inference", "float32", 1)
    assert table["lengths"] == {"seq_len": 12, "memory_len": 0} and table["threads"] == torch.get_num_threads()
    for row in table["candidates"].values():
        assert set(row) == {"median_ms", "spread_ms", "runs"} and row["median_ms"] > 0 <= row["spread_ms"] and row["runs"] > 1
    median = {label: row["median_ms"] for label, row in table["candidates"].items()}
    assert median["identity"] < median["feed_forward"] < median["feed_forward[d_inner=4000]"]


def test_memory_and_relative_positions_are_measured_too() -> None:
    settings = tiny().model.settings(256, 16)
    relative = type(settings).from_mapping({**settings.to_mapping(), "position": "relative", "memory_len": 8})
    table = measure_candidates(tiny(search__blocks=["self_attention", "identity"]), relative, CPU)
    assert table["lengths"]["memory_len"] == 8


def test_a_deeper_model_takes_longer() -> None:
    settings = {"d_model": 16, "heads": 2, "d_inner": 16, "max_len": 16, "vocab_size": 50}
    shallow, deep = (build(Architecture.from_pattern(pattern, settings)) for pattern in ("s", "s" * 12))
    assert measure_model(deep, 16, CPU) > 2 * measure_model(shallow, 16, CPU)


def test_the_mode_says_when_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: None)  # building kernels takes a compiler and minutes
    config = tiny(run__compile=True, search__blocks=["feed_forward", "identity"])
    assert measure_candidates(config, config.model.settings(256, 16), CPU)["mode"] == "compiled inference"
    assert device_name(torch.device("cpu")) == "cpu"


def test_a_network_is_measured_with_its_memory_full() -> None:
    seen: list[int] = []
    model = build(Architecture.from_pattern("s", {"max_len": 16, "memory_len": 9, "position": "relative"}))
    model.layers[0].register_forward_hook(lambda _, inputs, y: seen.append(inputs[1].memory.shape[1]))
    assert measure_model(model, 16, CPU) > 0 and set(seen) == {9}
