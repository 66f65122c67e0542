"""The search's steps: who changes, what each reads, what the gradients are, and that a stopped search goes on bit for
bit."""

import dataclasses
import itertools
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_runs import CPU, ROOT, Bench, StopAt, assert_equal, bench, environment, search_in, setup_of, tiny
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import nas.searching.search_loop as loop
import nas.searching.search_steps as search_steps
from nas.data.batches import training_batch
from nas.machine.stop import Stopped
from nas.searching.search_gates import temperature, weight_gates
from nas.searching.search_state import build_state
from nas.searching.search_steps import arch_step, weight_step
from nas.tasks.table import TASKS
from nas.training.checkpoint import restore
from nas.training.setup import Setup
from supernet.errors import RunFailed
from supernet.gates import RELAXATIONS

TIMINGS = ("tokens_per_second",)


def warm(made: Bench) -> Bench:
    """Weights and alphas that are not at their start."""
    for _ in range(3):
        weight_step(made.state, made.setup, 0)
    with torch.no_grad():
        made.state.model.alphas.copy_(
            torch.randn(made.state.model.alphas.shape, generator=torch.Generator().manual_seed(1))
        )
    return made


def snapshot(made: Bench) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in made.state.model.named_parameters()}


def changed(made: Bench, before: dict[str, torch.Tensor]) -> set[str]:
    return {name for name, value in made.state.model.named_parameters() if not torch.equal(value, before[name])}


@pytest.mark.parametrize("relaxation", RELAXATIONS)
def test_weight_step_leaves_the_alphas_bit_identical(relaxation: str) -> None:
    made = warm(bench(search__relaxation=relaxation, model__dropout=0.1))
    before = snapshot(made)
    weight_step(made.state, made.setup, 0)
    found = changed(made, before)
    assert "alphas" not in found and "embedding.weight" in " ".join(found)
    assert made.state.model.alphas.grad is None and made.state.model.alphas.requires_grad


@pytest.mark.parametrize("relaxation", RELAXATIONS)
def test_arch_step_changes_every_alpha_and_nothing_else(relaxation: str) -> None:
    made = warm(bench(search__relaxation=relaxation, model__dropout=0.1))
    before, moments = snapshot(made), str(made.state.optimizer.state_dict())
    arch_step(made.state, made.setup, made.costs, 0)
    assert changed(made, before) == {"alphas"}
    assert str(made.state.optimizer.state_dict()) == moments
    rows = (made.state.model.alphas.detach() != before["alphas"]).any(dim=1)
    assert rows.all()  # every layer learns


@pytest.mark.parametrize("relaxation", RELAXATIONS)
def test_arch_step_leaves_the_weights_gradients_alone(relaxation: str) -> None:
    made = warm(bench(search__relaxation=relaxation))
    gradients = [None if p.grad is None else p.grad.clone() for p in made.state.model.weight_parameters()]
    arch_step(made.state, made.setup, made.costs, 0)
    for parameter, before in zip(made.state.model.weight_parameters(), gradients, strict=True):
        assert (parameter.grad is None) == (before is None)
        assert before is None or torch.equal(parameter.grad, before)


def candidates_that_changed(found: set[str]) -> dict[int, set[int]]:
    """Layer -> candidates of which a weight changed, from names such as `layers.0.candidates.2.norm.weight`."""
    layers: dict[int, set[int]] = {}
    for name in found:
        parts = name.split(".")
        if parts[0] == "layers":
            layers.setdefault(int(parts[1]), set()).add(int(parts[3]))
    return layers


@pytest.mark.parametrize("step", [8, 9])
def test_sampled_weight_step_runs_and_updates_one_candidate_a_layer(step: int) -> None:
    blocks = ["self_attention", "feed_forward", "dense_synthesizer"]
    made = warm(bench(search__relaxation="sampled", search__blocks=blocks, model__layers=3))
    made.state.step = step
    ran: list[tuple[int, int]] = []
    for number, layer in enumerate(made.state.model.layers):
        for index, candidate in enumerate(layer.candidates):
            candidate.register_forward_hook(lambda *_, at=(number, index): ran.append(at))
    before = snapshot(made)
    weight_step(made.state, made.setup, 0)
    assert [layer for layer, _ in ran] == [0, 1, 2]
    assert candidates_that_changed(changed(made, before)) == {layer: {index} for layer, index in ran}


def test_warm_up_of_sampled_begins_with_the_mixture() -> None:
    made = bench(
        search__relaxation="sampled", model__layers=5, search__steps=40, search__warmup_steps=20, search__mixture=0.3
    )
    for step in range(6):
        assert torch.equal(weight_gates(made.state.host_alphas(), made.config, 0, step), torch.full((5, 4), 0.25))
    assert weight_gates(made.state.host_alphas(), made.config, 0, 6).max() == 1


def test_warm_up_of_sampled_is_fair() -> None:
    """In every four steps each of four candidates runs once in each layer, in orders that differ between layers and
    turns."""
    made = bench(
        search__relaxation="sampled", model__layers=5, search__steps=60, search__warmup_steps=40, search__mixture=0.0
    )
    gates = torch.stack([weight_gates(made.state.host_alphas(), made.config, 0, step) for step in range(40)])
    assert gates.shape == (40, 5, 4) and torch.equal(gates.sum(-1), torch.ones(40, 5))
    turns = gates.unflatten(0, (10, 4))  # [turns, steps of a turn, N, C]
    assert torch.equal(turns.sum(dim=1), torch.ones(10, 5, 4))
    assert len({tuple(order.tolist()) for order in turns.argmax(-1).transpose(1, 2).flatten(0, 1)}) > 15
    assert not torch.equal(
        gates, torch.stack([weight_gates(made.state.host_alphas(), made.config, 1, step) for step in range(40)])
    )


def test_a_fair_warm_up_step_updates_one_candidate_a_layer() -> None:
    made = warm(bench(search__relaxation="sampled", search__mixture=0.0, model__layers=3))
    trained: dict[int, list[int]] = {layer: [] for layer in range(3)}
    for step in range(4):
        made.state.step, before = step, snapshot(made)
        weight_step(made.state, made.setup, 0)
        for layer, candidates in candidates_that_changed(changed(made, before)).items():
            trained[layer] += candidates
    # the fourth is identity
    assert {layer: sorted(candidates) for layer, candidates in trained.items()} == {
        layer: [0, 1, 2] for layer in range(3)
    }


def test_after_the_warm_up_layouts_follow_the_probabilities() -> None:
    made = bench(search__relaxation="sampled")
    wanted = torch.tensor([[0.7, 0.1, 0.1, 0.1], [0.1, 0.2, 0.3, 0.4]])
    with torch.no_grad():
        made.state.model.alphas.copy_(wanted.log())
    drawn = torch.stack([weight_gates(made.state.host_alphas(), made.config, 0, step) for step in range(8, 3008)]).mean(
        dim=0
    )
    assert torch.allclose(drawn, wanted, atol=0.03)


def test_weights_and_alphas_read_their_own_part_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    made = bench(search__relaxation="softmax")
    read: list[tuple[str, np.ndarray]] = []

    def recording(corpus: Any, part: str, *arguments: Any, **options: Any) -> Any:
        batch = training_batch(corpus, part, *arguments, **options)
        read.append((part, batch.tokens))
        return batch

    monkeypatch.setitem(TASKS, "causal_lm", dataclasses.replace(TASKS["causal_lm"], training_batch=recording))
    for _ in range(3):
        weight_step(made.state, made.setup, 0)
        arch_step(made.state, made.setup, made.costs, 0)
    assert [part for part, _ in read] == ["weights", "alphas"] * 3
    text = made.corpus.tokens[:].tobytes()
    start, end = made.corpus.parts["alphas"]
    for part, batch in read:
        row = batch[0].astype(np.uint8).tobytes()
        first, last = made.corpus.parts[part]
        assert row in text[first:last]  # the rows lie in the part; the two parts do not overlap
    assert made.corpus.parts["weights"][1] <= start < end
    assert len({batch.tobytes() for _, batch in read}) == 6


def test_the_two_gradients_are_clipped_apart() -> None:
    """A huge cost gradient must not shrink the weights' step, nor the other way round."""
    plain, heavy = (warm(bench(search__relaxation="softmax", search__cost_weight=weight)) for weight in (1.0, 1e6))
    for made in (plain, heavy):
        arch_step(made.state, made.setup, made.costs, 0)
        with torch.no_grad():
            made.state.model.alphas.zero_()
        weight_step(made.state, made.setup, 0)
    for one, other in zip(plain.state.model.weight_parameters(), heavy.state.model.weight_parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_alphas_gradient_is_clipped_to_its_own_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    made = warm(bench(search__relaxation="softmax", search__cost_weight=1e6, search__clip=0.25))
    norms: list[float] = []
    step = made.state.arch_optimizer.step

    def recording() -> None:
        norms.append(float(made.state.model.alphas.grad.norm()))
        step()

    monkeypatch.setattr(made.state.arch_optimizer, "step", recording)
    arch_step(made.state, made.setup, made.costs, 0)
    assert norms == [pytest.approx(0.25, rel=1e-4)]


def test_temperature_is_exact_at_start_and_end(tmp_path: Path) -> None:
    config = tiny(
        search__temperature_start=3.7, search__temperature_end=0.3, run__log_every=1, search__relaxation="gumbel"
    )
    search_in(tmp_path, config)
    logged = {line["step"]: line["temperature"] for line in metrics(tmp_path)}
    assert [logged[step] for step in (1, 8, 9, 20)] == [3.7, 3.7, 3.7, 0.3]  # step k of the log ran as step k - 1
    falling = [logged[step] for step in range(9, 21)]
    assert all(before > after for before, after in itertools.pairwise(falling))
    assert temperature(config.search, 19) == 0.3


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMINGS} for line in lines]


def final_state(folder: Path, config: Any) -> dict[str, Any]:

    state = build_state(setup_of(config), 0)
    restore(state, folder)
    return state.to_checkpoint()


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("relaxation", RELAXATIONS)
def test_stopped_and_resumed_equals_uninterrupted(tmp_path: Path, relaxation: str, dropout: float) -> None:
    config = tiny(
        search__relaxation=relaxation, model__dropout=dropout, search__temperature_end=0.5, search__arch_every=2
    )
    search_in(tmp_path / "whole", config)
    for after in (2, 9):  # in the warm-up, then after it; neither at a step of checkpoint_every
        with pytest.raises(Stopped):
            search_in(tmp_path / "parts", config, StopAt(after))
    search_in(tmp_path / "parts", config)
    assert_equal(final_state(tmp_path / "whole", config), final_state(tmp_path / "parts", config))
    whole, parts = ((tmp_path / name / "probabilities.json").read_bytes() for name in ("whole", "parts"))
    assert whole == parts
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "parts")


@pytest.mark.parametrize("relaxation", RELAXATIONS)
def test_a_search_with_memory_remembers_weights_and_alphas_text_apart_and_resumes(
    tmp_path: Path, relaxation: str
) -> None:
    config = tiny(search__relaxation=relaxation, model__memory_len=20, model__position="relative", search__arch_every=2)
    search_in(tmp_path / "whole", config)
    for after in (2, 12):
        with pytest.raises(Stopped):
            search_in(tmp_path / "parts", config, StopAt(after))
    saved = torch.load(tmp_path / "parts" / "checkpoint.pt", weights_only=True)
    assert saved["memory"].shape == saved["arch_memory"].shape == (2, 3, 20, 8)
    assert not torch.equal(saved["memory"], saved["arch_memory"])
    search_in(tmp_path / "parts", config)
    assert_equal(final_state(tmp_path / "whole", config), final_state(tmp_path / "parts", config))
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "parts")


def test_metrics_hold_each_step_once_with_first_and_last(tmp_path: Path) -> None:
    search_in(tmp_path, tiny(run__log_every=7))
    lines = metrics(tmp_path)
    assert [line["step"] for line in lines] == [1, 7, 14, 20]
    assert [line["phase"] for line in lines] == ["warmup", "warmup", "search", "search"]
    wanted = {"step", "phase", "loss", "held_out_loss", "derived_loss", "temperature", "entropy", "expected_cost"}
    assert all(wanted <= set(line) for line in lines)
    assert lines[0]["entropy"] == pytest.approx(math.log(4), abs=1e-5)
    assert lines[-1]["held_out_loss"] is not None and lines[-1]["derived_loss"] is not None


def test_probabilities_file_is_as_the_contract_has_it(tmp_path: Path) -> None:
    search_in(tmp_path, tiny())
    content = json.loads((tmp_path / "probabilities.json").read_text())
    table = np.array(content["probabilities"])
    assert content["candidates"] == ["self_attention", "random_synthesizer", "feed_forward", "identity"]
    assert content["steps"] == [1, 3, 6, 9, 12, 15, 18, 20] and table.shape == (8, 2, 4)
    assert np.allclose(table.sum(axis=2), 1, atol=1e-6)
    assert (table[2] == 0.25).all() and (table[-1] != 0.25).any()  # frozen in the warm-up
    assert content["cost"]["unit"] == "flops_per_token" and content["cost"]["budget"] == 0.3
    assert set(content["candidates"]) <= set(content["cost"]["candidates"]) and content["seed"] == 0
    assert isinstance(content["verdict"]["converged"], bool) and content["verdict"]["reasons"]
    with torch.no_grad():
        alphas = final_state(tmp_path, tiny())["model"]["alphas"]
    assert np.allclose(table[-1], torch.softmax(alphas, -1), atol=1e-6)


def test_checkpoint_loads_with_weights_only(tmp_path: Path) -> None:
    search_in(tmp_path, tiny())
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert saved["step"] == 20 and saved["candidates"][0] == "self_attention"


def test_same_seed_in_another_process_is_bitwise_and_another_seed_is_not(tmp_path: Path) -> None:
    config = tiny(search__relaxation="sampled", model__dropout=0.1)
    search_in(tmp_path / "here", config)
    search_in(tmp_path / "other seed", config, seed=1)
    script = (
        "import sys, torch; torch.set_num_threads(1); sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from tiny_runs import search_in, tiny\n"
        "search_in(Path(sys.argv[2]), tiny(search__relaxation='sampled', model__dropout=0.1))"
    )
    line = [sys.executable, "-c", script, str(ROOT / "tests"), str(tmp_path / "there")]
    subprocess.run(line, check=True, env={**environment(), "PYTHONHASHSEED": "7"}, cwd=tmp_path, timeout=120)
    here, there, other = (
        (tmp_path / name / "probabilities.json").read_bytes() for name in ("here", "there", "other seed")
    )
    assert here == there != other
    assert_equal(final_state(tmp_path / "here", config), final_state(tmp_path / "there", config))
    assert metrics(tmp_path / "here") == metrics(tmp_path / "there")


def test_recorded_loss_curve(tmp_path: Path) -> None:
    """`python tests/record_curve.py` made the file; a change that should alter results makes it anew and says why."""
    from record_curve import PATH, curve

    recorded, now = json.loads(PATH.read_text()), curve(tmp_path)
    assert [line["step"] for line in now] == [line["step"] for line in recorded["curve"]]
    for before, after in zip(recorded["curve"], now, strict=True):
        for key, value in before.items():
            assert after[key] == (value if value is None else pytest.approx(value, abs=1e-5)), (
                f"step {before['step']}: {key}"
            )


def test_a_loss_that_stays_not_finite_ends_the_run_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    config = tiny(search__steps=60, search__weight_lr=1e30, search__clip=1e30, run__checkpoint_every=100)
    good = tiny(search__steps=60, run__checkpoint_every=100)
    with pytest.raises(Stopped):
        search_in(tmp_path, good, StopAt(5))
    kept = (tmp_path / "checkpoint.pt").read_bytes()
    with pytest.raises(RunFailed, match="not finite.*lower the learning rate"):
        search_in(tmp_path, config)
    assert (tmp_path / "checkpoint.pt").read_bytes() == kept
    assert all(torch.isfinite(value).all() for value in torch.load(tmp_path / "checkpoint.pt")["model"].values())


def test_a_search_goes_back_once_and_ends_the_same_when_it_is_killed_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights' loss is made NaN from step 11 on for as long as their rate has not been lowered."""
    plain = loop.weight_step

    def broken(state: Any, *arguments: Any) -> Any:
        if state.slowed == 1 and state.step >= 10:
            with torch.no_grad():
                state.model.norm.weight[0] = math.nan
        return plain(state, *arguments)

    monkeypatch.setattr(loop, "weight_step", broken)
    config = tiny(search__steps=40, run__checkpoint_every=4, run__log_every=2)
    search_in(tmp_path / "whole", config)
    for after in (13, 6, 12):  # within the row of bad steps, then at a lower rate
        with pytest.raises(Stopped):
            search_in(tmp_path / "parts", config, StopAt(after))
    search_in(tmp_path / "parts", config)
    assert [line["step"] for line in metrics(tmp_path / "whole")] == [1, *range(2, 41, 2)]
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "parts")
    assert_equal(final_state(tmp_path / "whole", config), final_state(tmp_path / "parts", config))
    assert final_state(tmp_path / "whole", config)["slowed"] == 0.3


class NothingIsRead(TorchDispatchMode):
    """Fails where a number of a tensor is asked for, for which a GPU would have to be waited for."""

    def __torch_dispatch__(self, function: Any, types: Any, arguments: tuple = (), options: dict | None = None) -> Any:
        assert function is not torch.ops.aten._local_scalar_dense.default
        return function(*arguments, **(options or {}))


def drawn_on_the_host(alphas: torch.Tensor, *arguments: Any) -> torch.Tensor:
    """`weight_gates`, which may read numbers, since it has the alphas on the host."""
    with _disable_current_modes():
        return weight_gates(alphas, *arguments)


@pytest.mark.parametrize("relaxation", list(RELAXATIONS))
@pytest.mark.parametrize(
    "changes", [{}, {"model__memory_len": 20, "model__position": "relative", "data__micro_batch_size": 2}]
)
def test_a_weight_step_waits_for_nothing(
    relaxation: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the warm-up nor after it."""
    monkeypatch.setattr(search_steps, "weight_gates", drawn_on_the_host)
    made = bench(search__relaxation=relaxation, **changes)
    gpu = dataclasses.replace(CPU, read_every=10)
    with NothingIsRead():
        for _ in range(9):
            weight_step(made.state, Setup(made.config, made.corpus, gpu), 0)
    with pytest.raises(AssertionError), NothingIsRead():
        weight_step(made.state, Setup(made.config, made.corpus, gpu), 0)  # the tenth reads the count
    arch_step(made.state, Setup(made.config, made.corpus, gpu), made.costs, 0)
    with NothingIsRead():
        weight_step(made.state, Setup(made.config, made.corpus, gpu), 0)


class OnAGpu(torch.Tensor):
    """Alphas that say they lie on a GPU, which copies from it count."""

    copies = 0

    @property
    def device(self) -> torch.device:
        return torch.device("cuda")

    def detach(self) -> "OnAGpu":
        return self

    def cpu(self) -> torch.Tensor:
        OnAGpu.copies += 1
        return self.as_subclass(torch.Tensor).clone()


def test_host_alphas_are_copied_once_after_they_have_moved() -> None:
    made = bench()
    assert made.state.host_alphas().data_ptr() == made.state.model.alphas.data_ptr()  # nothing to copy
    del made.state.model.alphas
    made.state.model.alphas = alphas = torch.zeros(5, 4).as_subclass(OnAGpu)
    first = made.state.host_alphas()
    assert made.state.host_alphas() is first and OnAGpu.copies == 1 and not first.any()
    alphas.add_(1)
    assert made.state.host_alphas() is not first and bool((made.state.host_alphas() == 1).all()) and OnAGpu.copies == 2


def test_a_step_that_is_not_finite_changes_nothing_and_is_counted() -> None:
    made = warm(bench(search__relaxation="softmax"))
    with torch.no_grad():
        made.state.model.embedding.weight[:, 0] = math.inf
    before = snapshot(made)
    weight_step(made.state, made.setup, 0)
    assert changed(made, before) == set() and made.state.bad_steps == 1 and made.state.step == 4
    arch_step(made.state, made.setup, made.costs, 0)
    assert torch.equal(made.state.model.alphas, before["alphas"])


def test_searches_learn(tmp_path: Path) -> None:
    """120 steps take the loss from ln 256 well below the entropy of single letters' start."""
    config = tiny(
        search__steps=150,
        search__warmup_steps=100,
        search__weight_lr=0.02,
        search__evaluate_every=150,
        run__log_every=50,
    )
    search_in(tmp_path, config)
    lines = metrics(tmp_path)
    assert lines[0]["loss"] > 5.3 and lines[-1]["held_out_loss"] < 3.8
