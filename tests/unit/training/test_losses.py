"""The loss of a batch in parts, and with blocks computed again in the backward pass: the same numbers, less memory."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from tiny_runs import CPU, setup_of, tiny
from torch import Tensor

from derive import Architecture
from nas.config.sections import Config
from nas.costs.costs_table import build_costs
from nas.data.batches import Batch
from nas.data.corpus import load_corpus
from nas.searching.search_state import SearchState, build_state
from nas.searching.search_steps import arch_step, weight_step
from nas.training.losses import part_losses, set_mode
from nas.training.setup import Setup
from nas.training.train import build_training, train_step
from nas.training.train_state import TrainState
from supernet.gates import RELAXATIONS
from supernet.supernet import Supernet

MEMORY = {"model__memory_len": 24, "model__position": "relative"}
ROWS = 7


def searching(**changes: Any) -> tuple[SearchState, Config]:
    """A search past its first steps: weights away from their start, uneven alphas."""
    config = tiny(data__batch_size=ROWS, search__steps=100, search__warmup_steps=9, **changes)
    state = build_state(setup_of(config), 0)
    with torch.no_grad():
        state.model.alphas.copy_(torch.randn(state.model.alphas.shape, generator=torch.Generator().manual_seed(3)))
    return state, config


def searched(steps: int, first: int, **changes: Any) -> dict[str, Any]:
    """What some steps of weights and alphas leave, from step `first` on."""
    state, config = searching(**changes)
    corpus = load_corpus(config.data)
    costs = build_costs(config, config.model.settings(256, config.data.seq_len))
    state.step = first
    numbers = []
    for _ in range(steps):
        numbers.append(weight_step(state, Setup(config, corpus, CPU), 0)["loss"])
        if state.step > config.search.warmup_steps:
            numbers.append(arch_step(state, Setup(config, corpus, CPU), costs, 0)["arch_loss"])
    return {
        "losses": torch.tensor(numbers),
        **dict(state.model.state_dict()),
        "memory": state.memory,
        "arch memory": state.arch_memory,
    }


def trained(**changes: Any) -> dict[str, Any]:
    config = tiny(data__batch_size=ROWS, **changes)
    settings = config.model.settings(256, config.data.seq_len)
    state = build_training(
        Architecture.from_pattern("srff", {**settings.to_mapping(), "task": settings.task}),
        setup_of(config),
        0,
    )
    losses = [train_step(state, setup_of(config), 0) for _ in range(3)]
    return {"losses": torch.tensor(losses), **dict(state.model.state_dict()), "memory": state.memory}


def assert_same(found: dict[str, Any], expected: dict[str, Any], **tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, **tolerance, msg=lambda told, name=name: f"{name}: {told}")


@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("memory", [{}, MEMORY], ids=["crops", "memory"])
@pytest.mark.parametrize("relaxation", RELAXATIONS)
def test_a_search_in_parts_is_the_search(relaxation: str, memory: dict, size: int) -> None:
    changes = {"search__relaxation": relaxation, "search__weight_lr": 1e-4, "search__arch_lr": 1e-4, **memory}
    whole = searched(3, first=11, **changes)
    assert_same(searched(3, first=11, data__micro_batch_size=size, **changes), whole, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("first", [0, 5], ids=["mixture", "fair paths"])
def test_a_warm_up_in_parts_is_the_warm_up(first: int) -> None:
    """Fair paths lie on groups of rows that the parts cut through."""
    changes = {"search__relaxation": "sampled", "search__weight_lr": 1e-4}
    whole = searched(2, first, **changes)
    assert_same(searched(2, first, data__micro_batch_size=3, **changes), whole, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("memory", [{}, MEMORY], ids=["crops", "memory"])
def test_a_training_in_parts_is_the_training(memory: dict) -> None:
    assert_same(
        trained(data__micro_batch_size=2, retrain__lr=1e-4, **memory),
        trained(retrain__lr=1e-4, **memory),
        rtol=2e-4,
        atol=2e-6,
    )


@pytest.mark.parametrize("memory", [{}, MEMORY], ids=["crops", "memory"])
@pytest.mark.parametrize("relaxation", RELAXATIONS)
def test_recomputing_changes_no_bit_of_a_search(relaxation: str, memory: dict) -> None:
    changes = {"search__relaxation": relaxation, "model__dropout": 0.1, **memory}
    plain = searched(3, first=11, run__recompute="none", **changes)
    for choice in ("alphas", "all"):
        assert_same(searched(3, first=11, run__recompute=choice, **changes), plain, rtol=0, atol=0)


def test_recomputing_changes_no_bit_of_a_training() -> None:
    assert_same(trained(run__recompute="all", model__dropout=0.1), trained(model__dropout=0.1), rtol=0, atol=0)


def kept_for_backward(net: Supernet, gates: Tensor, *, recompute: bool) -> int:
    """Bytes of different storages that the graph of one loss keeps, parameters aside."""
    own = {parameter.untyped_storage().data_ptr() for parameter in net.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = tensor
        return tensor

    net.recompute = recompute
    tokens = torch.randint(256, (5, 16), generator=torch.Generator().manual_seed(0))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = net(tokens, gates).float().logsumexp(dim=-1).mean()
    assert loss.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def test_recomputed_alphas_keep_no_more_for_more_candidates() -> None:
    """Between three and nine candidates only the gates grow."""
    labels = ["feed_forward", *(f"dense_synthesizer[d_hidden={2 * size}]" for size in range(1, 9))]
    model = {
        "vocab_size": 256,
        "d_model": 8,
        "heads": 2,
        "d_inner": 10,
        "max_len": 16,
        "task": "causal_lm",
        "layers": 4,
    }
    kept = {}
    for count in (3, 9):
        net = Supernet(model, labels[:count])
        gates = torch.full((4, count), 1 / count, requires_grad=True)
        kept[count] = [kept_for_backward(net, gates, recompute=recompute) for recompute in (True, False)]
    assert kept[9][0] <= kept[3][0] + 4 * 6 * 4 * 8
    assert kept[9][1] > 2 * kept[3][1] > 4 * kept[3][0]


def test_parts_hold_one_graph_at_a_time() -> None:
    state, config = searching()
    setup = setup_of(config)
    parted = setup.but(data=dataclasses.replace(config.data, micro_batch_size=2))
    batch = Batch(setup.corpus.part("weights")[: ROWS * 17].reshape(ROWS, 17).astype("int64"), fresh=True)
    gates = torch.full(state.model.alphas.shape, 0.25)
    running: list[int] = []
    state.model.register_forward_pre_hook(lambda *_: running.append(1))
    losses = part_losses(state.model, batch, parted, gates, memory=None)
    next(losses)
    assert len(running) == 1  # the next part runs when it is asked for, after the first one's backward pass
    assert len(list(losses)) == 3 and len(running) == 4


def test_a_non_finite_part_spoils_the_step_and_its_memory() -> None:
    config = tiny(data__batch_size=ROWS, data__micro_batch_size=2, **MEMORY)
    settings = config.model.settings(256, config.data.seq_len)
    state: TrainState = build_training(
        Architecture.from_pattern("sf", {**settings.to_mapping(), "task": settings.task}),
        setup_of(config),
        0,
    )
    train_step(state, setup_of(config), 0)
    before = {name: value.clone() for name, value in state.model.state_dict().items()}
    state.model.register_forward_hook(
        lambda model, arguments, output: (output[0] * (math.nan if len(arguments[0]) == 1 else 1), output[1])
    )
    assert math.isnan(train_step(state, setup_of(config), 0))  # the last part has one row
    assert state.bad_steps == 1 and state.memory is None
    assert_same(dict(state.model.state_dict()), before, rtol=0, atol=0)


def test_set_mode_walks_the_modules_only_for_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Sequential(torch.nn.Dropout(0.5))
    set_mode(model, training=False)
    assert not model.training and not model[0].training
    monkeypatch.setattr(model, "train", None)
    set_mode(model, training=False)
