"""Latency: a row for every candidate and for the baseline, times that order blocks as their work does, and sums that
predict."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_runs import CPU, tiny
from torch import Tensor

import nas.costs.latency
from derive import Architecture, build
from nas.config.sections import Config, DataConfig, LatencyConfig, ModelConfig, SearchConfig
from nas.costs.latency import LayerTimes, device_name, layer_stack, measure_candidates, measure_layers, measure_network
from supernet.settings import ModelSettings

MODEL = {"d_model": 16, "heads": 2, "d_inner": 16, "max_len": 16, "vocab_size": 50}


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that look at what is measured rather than at how long it takes."""
    monkeypatch.setattr(nas.costs.latency, "SECONDS", 0.001)


def test_the_table_is_as_the_contract_has_it() -> None:
    blocks = ["random_synthesizer", "feed_forward[d_inner=4000]", "identity"]
    config = tiny(search__blocks=blocks, data__seq_len=12, model__max_len=16)
    tables = {}
    for of in ("inference", "training"):
        table = measure_candidates(config, config.model.settings(256, 12), CPU, training=of == "training")
        assert list(table["candidates"]) == [*blocks, "self_attention", "feed_forward"]
        assert (table["device"], table["mode"], table["dtype"], table["batch"]) == ("cpu", f"eager {of}", "float32", 1)
        assert table["lengths"] == {"seq_len": 12, "memory_len": 0} and table["threads"] == torch.get_num_threads()
        for row in (*table["candidates"].values(), table["surroundings"]):
            assert (
                set(row) == {"median_ms", "spread_ms", "runs"}
                and row["median_ms"] > 0 <= row["spread_ms"]
                and row["runs"] > 1
            )
        tables[of] = {label: row["median_ms"] for label, row in table["candidates"].items()}
        assert tables[of]["identity"] < tables[of]["feed_forward"] < tables[of]["feed_forward[d_inner=4000]"]
    assert all(
        tables["training"][label] > tables["inference"][label] for label in set(tables["inference"]) - {"identity"}
    )


def test_a_large_vocabulary_costs_the_layers_nothing() -> None:
    settings = dataclasses.replace(ModelSettings.from_mapping(MODEL), vocab_size=10**9)
    assert len(layer_stack("feed_forward", settings, CPU)) == nas.costs.latency.COPIES


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize(
    "changes", [{}, {"position": "relative", "memory_len": 8}, {"position": "relative", "share_biases": False}]
)
def test_every_shape_is_measured(changes: dict[str, Any]) -> None:
    config = tiny(
        search__blocks=["self_attention", "dense_synthesizer", "identity"], latency__batch_size=3, latency__seq_len=11
    )
    settings = config.model.settings(256, 16)
    table = measure_candidates(config, type(settings).from_mapping({**settings.to_mapping(), **changes}), CPU)
    assert table["lengths"] == {"seq_len": 11, "memory_len": changes.get("memory_len", 0)} and table["batch"] == 3


def watched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What each measurement ran: (shape of the output, whether it has a gradient, whether the module trains)."""
    seen: list[tuple[Any, ...]] = []
    measure = nas.costs.latency._measure

    def watching(
        module: torch.nn.Module, forward: Callable[[], Tensor], *arguments: Any, **options: Any
    ) -> dict[str, float]:
        def look() -> Tensor:
            y = forward()
            seen.append((tuple(y.shape), y.requires_grad, module.training))
            return y

        return measure(module, look, *arguments, **options)

    monkeypatch.setattr(nas.costs.latency, "_measure", watching)
    return seen


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("backward", [False, True])
def test_layers_run_forward_alone_or_forward_and_backward(backward: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, settings = watched(monkeypatch), ModelSettings.from_mapping({**MODEL, "dropout": 0.1})
    layers = layer_stack("feed_forward", settings, CPU, trains=backward)
    assert len({layer.block.inner.weight.data_ptr() for layer in layers}) == nas.costs.latency.COPIES
    row = measure_layers(layers, settings, (5, 7), CPU, backward=backward)
    assert set(seen) == {((5, 7, 16), backward, backward)} and row["runs"] <= len(seen)
    assert all(parameter.grad is None for parameter in layers.parameters())


def test_layers_are_measured_as_a_network_for_inference_has_them() -> None:
    settings = ModelSettings.from_mapping(MODEL)
    assert type(layer_stack("random_synthesizer", settings, CPU)[0].block).__name__ == "StoredMap"
    assert type(layer_stack("random_synthesizer", settings, CPU, trains=True)[0].block).__name__ == "RandomSynthesizer"
    assert len(layer_stack("identity", settings, CPU)) == 0


def test_a_deeper_model_takes_longer() -> None:
    shallow, deep = (build(Architecture.from_pattern(pattern, MODEL)) for pattern in ("s", "s" * 12))
    assert measure_network(deep, (1, 16), CPU)["median_ms"] > 2 * measure_network(shallow, (1, 16), CPU)["median_ms"]


def test_the_mode_says_when_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: None)  # building kernels takes a compiler and minutes
    config = tiny(run__compile=True, search__blocks=["feed_forward", "identity"])
    assert measure_candidates(config, config.model.settings(256, 16), CPU)["mode"] == "compiled inference"
    assert device_name(torch.device("cpu")) == "cpu"


@pytest.mark.usefixtures("quickly")
def test_a_network_is_measured_with_its_memory_full() -> None:
    seen: list[int] = []
    model = build(Architecture.from_pattern("s", {"max_len": 16, "memory_len": 9, "position": "relative"}))
    model.layers[0].register_forward_hook(lambda _, inputs, y: seen.append(inputs[1].memory.shape[1]))
    assert measure_network(model, (1, 16), CPU)["median_ms"] > 0 and set(seen) == {9}


def test_a_prediction_is_the_sum_of_what_was_measured() -> None:
    settings = ModelSettings.from_mapping(MODEL)
    known = {("self_attention", settings): 2.0, ("feed_forward", settings): 3.0, (4, settings): 0.5}
    times = LayerTimes(tiny(), CPU, dict(known))
    assert times.predict(Architecture.from_pattern("sfsf", MODEL)) == 10.5 and times.measured == known


@pytest.mark.usefixtures("quickly")
def test_each_layer_is_measured_once_for_its_widths() -> None:
    times, settings = LayerTimes(tiny(), CPU), ModelSettings.from_mapping(MODEL)
    first = times.predict(Architecture.from_pattern("sfsf", MODEL))
    assert set(times.measured) == {("self_attention", settings), ("feed_forward", settings), (4, settings)}
    assert times.predict(Architecture.from_pattern("fsfs", MODEL)) == pytest.approx(first)
    times.predict(Architecture.from_pattern("sfsf", {**MODEL, "d_model": 32}))
    assert len(times.measured) == 6


def test_predicted_and_measured_times_agree() -> None:
    """Within a factor of two here, where other tests run beside it; benchmarks/README.md has the figure of an idle
    machine."""
    config = Config(data=DataConfig(), model=ModelConfig(), search=SearchConfig(), latency=LatencyConfig(batch_size=4))
    settings = config.model.settings(256, 64)
    times = LayerTimes(config, CPU)
    ratios = []
    for pattern in ("sfsfsfsf", "sfffffff", "ddqqffii"):
        arch = Architecture.from_pattern(pattern, {**settings.to_mapping(), "task": settings.task})
        ratios.append(times.predict(arch) / measure_network(build(arch), (4, 64), CPU)["median_ms"])
    assert 1 / 2 < sorted(ratios)[1] < 2, ratios
