"""Plain training: it learns, goes on bit for bit, keeps what it reports, and gives up on a loss that stays not
finite."""

import contextlib
import dataclasses
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import CPU, StopAt, assert_equal, setup_of, tiny
from torch import Tensor, nn

from derive import Architecture, build
from nas.config.sections import Config
from nas.data.batches import evaluation_batches
from nas.data.corpus import Corpus, load_corpus
from nas.machine.stop import StopFlag, Stopped
from nas.tasks.table import TASKS
from nas.training.evaluation import evaluate
from nas.training.optimizers import learning_rate, norm_clipped, step_where, with_gradients
from nas.training.setup import Setup
from nas.training.train import build_training, is_trained, train_architecture, train_step
from nas.training.train_state import SLOWER, NotFinite, TrainState, save_state
from nas.training.weights import load_weights, save_weights
from supernet.errors import RunFailed, UserError


def architecture(config: Config, pattern: str = "sf", **changes: Any) -> Architecture:
    settings = config.model.settings(256, config.data.seq_len)
    return Architecture.from_pattern(pattern, {**settings.to_mapping(), "task": settings.task, **changes})


def train(folder: Path, config: Config, stop: StopFlag | None = None, pattern: str = "sf", seed: int = 0) -> None:
    with contextlib.redirect_stderr(io.StringIO()):
        train_architecture(architecture(config, pattern), setup_of(config), folder, seed, stop=stop or StopFlag())


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "tokens_per_second"} for line in lines]


def test_files_of_a_finished_training(tmp_path: Path) -> None:
    train(tmp_path, tiny())
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "architecture.json",
        "metrics.jsonl",
        "model.safetensors",
        "result.json",
    ]
    lines = metrics(tmp_path)
    assert [line["step"] for line in lines] == [1, 3, 6, 9, 12, 15, 16]
    assert [line["held_out_loss"] is not None for line in lines] == [False, False, True, False, True, False, True]
    assert {line["phase"] for line in lines} == {"retrain"}
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["steps"] == 16 and result["tokens"] == 512


@pytest.mark.parametrize(("log_every", "evaluated"), [(5, [10, 15, 16]), (1, [6, 12, 16]), (16, [16])])
def test_evaluations_come_at_the_next_logged_step(tmp_path: Path, log_every: int, evaluated: list[int]) -> None:
    train(tmp_path, tiny(run__log_every=log_every))
    assert [line["step"] for line in metrics(tmp_path) if line["held_out_loss"] is not None] == evaluated


def test_the_kept_weights_give_the_reported_loss(tmp_path: Path) -> None:
    """Recomputed from the files alone with a loss written out here."""
    config = tiny(model__dropout=0.2)
    train(tmp_path, config)
    model = build(Architecture.load(tmp_path / "architecture.json")).eval()
    model.load_state_dict(load_file(tmp_path / "model.safetensors"))
    losses = []
    with torch.no_grad():
        for batch in evaluation_batches(load_corpus(config.data), "held_out", seq_len=16, batch_size=7, limit=512):
            tokens = torch.from_numpy(batch)
            chosen = model(tokens[:, :-1]).double().log_softmax(-1).gather(-1, tokens[:, 1:, None])
            losses += (-chosen).flatten().tolist()
    result = json.loads((tmp_path / "result.json").read_text())
    assert len(losses) == result["tokens"] and np.mean(losses) == pytest.approx(result["held_out_loss"], abs=1e-6)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_stopped_and_resumed_equals_uninterrupted(tmp_path: Path, dropout: float) -> None:
    config = tiny(model__dropout=dropout)
    train(tmp_path / "whole", config)
    for after in (1, 6):
        with pytest.raises(Stopped):
            train(tmp_path / "parts", config, StopAt(after))
    assert torch.load(tmp_path / "parts" / "checkpoint.pt", weights_only=True)["step"] == 9
    train(tmp_path / "parts", config)
    assert_equal(
        load_file(tmp_path / "whole" / "model.safetensors"), load_file(tmp_path / "parts" / "model.safetensors")
    )
    assert (tmp_path / "whole" / "result.json").read_bytes() == (tmp_path / "parts" / "result.json").read_bytes()
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "parts")


def test_a_finished_training_is_known_by_its_layout(tmp_path: Path) -> None:
    config = tiny()
    assert not is_trained(architecture(config), tmp_path)
    train(tmp_path, config)
    assert is_trained(architecture(config), tmp_path)
    with pytest.raises(UserError, match="holds the training of another layout of the name 'ff', sf; give another run"):
        is_trained(dataclasses.replace(architecture(config, "ff")), tmp_path)


REMEMBERS = {"model__memory_len": 24, "model__position": "relative"}


def test_memory_goes_on_from_step_to_step_and_starts_anew_with_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of a step is that of the model on the segment with the memory of the one before, detached and
    bounded."""
    import nas.training.losses

    config = tiny(**REMEMBERS, retrain__lr=1e-12, data__batch_size=2)
    state = build_training(architecture(config), setup_of(config), 0)
    corpus, seen = load_corpus(config.data), []
    plain = nas.training.losses.batch_loss

    def recording(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        seen.append(options.get("memory"))
        return plain(*arguments, **options)

    monkeypatch.setattr(nas.training.losses, "batch_loss", recording)
    start, end = corpus.parts["weights"]
    segments = (end - start - 1) // 2 // 16
    losses = [train_step(state, Setup(config, corpus, CPU), 0) for _ in range(4)]
    assert [None if memory is None else memory.shape[2] for memory in seen] == [None, 16, 24, 24]
    assert not any(memory.requires_grad for memory in seen[1:])
    long = np.stack([corpus.part("weights")[row * ((end - start - 1) // 2) :][:65] for row in (0, 1)]).astype(np.int64)
    with torch.no_grad():
        memory, expected = None, []
        for number in range(4):
            inputs = torch.from_numpy(long[:, 16 * number : 16 * number + 17])
            logits, memory = state.model(inputs[:, :-1], memory=memory)
            expected.append(float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), inputs[:, 1:].flatten())))
    assert losses == pytest.approx(expected, abs=1e-5)
    state.step = segments
    train_step(state, Setup(config, corpus, CPU), 0)
    assert seen[-1] is None


def test_memory_survives_a_resume_and_a_bad_step_forgets_it(tmp_path: Path) -> None:
    config = tiny(**REMEMBERS)
    train(tmp_path / "whole", config)
    for after in (1, 6):
        with pytest.raises(Stopped):
            train(tmp_path / "parts", config, StopAt(after))
    assert torch.load(tmp_path / "parts" / "checkpoint.pt", weights_only=True)["memory"].shape == (2, 3, 24, 8)
    train(tmp_path / "parts", config)
    assert_equal(
        load_file(tmp_path / "whole" / "model.safetensors"), load_file(tmp_path / "parts" / "model.safetensors")
    )
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "parts")
    state = build_training(architecture(config), setup_of(config), 0)
    train_step(state, setup_of(config), 0)
    assert state.memory is not None
    state.memory.fill_(math.nan)
    train_step(state, setup_of(config), 0)
    assert state.bad_steps == 1 and state.memory is None
    train_step(state, setup_of(config), 0)
    assert state.bad_steps == 0


def test_evaluation_with_memory_is_that_of_one_long_row_and_can_remember_more_than_training() -> None:
    config = tiny(model__memory_len=24, model__position="relative", model__max_len=600)
    model = build(architecture(config)).eval()
    with torch.no_grad():
        model.layers[0].block.output.weight.mul_(50)
    corpus = load_corpus(config.data)
    wide = dataclasses.replace(config, data=dataclasses.replace(config.data, eval_memory_len=600))
    found = evaluate(model, Setup(wide, corpus, CPU), "held_out", limit=128)
    tokens = torch.from_numpy(corpus.part("held_out")[:129].astype(np.int64))[None]
    with torch.no_grad():
        logits, _ = model(tokens[:, :-1])
    expected = float(torch.nn.functional.cross_entropy(logits[0], tokens[0, 1:]))
    assert found.loss == pytest.approx(expected, abs=1e-5) and found.tokens == 128
    assert evaluate(model, Setup(config, corpus, CPU), "held_out", limit=128).loss != pytest.approx(expected, abs=1e-5)
    assert (model.memory_len, model.clamp_len) == (24, None)


def test_another_seed_and_another_layout_differ(tmp_path: Path) -> None:
    results = set()
    for number, (seed, pattern) in enumerate([(0, "sf"), (1, "sf"), (0, "ff")]):
        train(tmp_path / str(number), tiny(), seed=seed, pattern=pattern)
        results.add(json.loads((tmp_path / str(number) / "result.json").read_text())["held_out_loss"])
    assert len(results) == 3


def test_training_learns(tmp_path: Path) -> None:
    train(tmp_path, tiny(retrain__steps=120, retrain__lr=0.03, run__log_every=100, retrain__evaluate_every=1000))
    assert (
        metrics(tmp_path)[0]["loss"] > 5 and json.loads((tmp_path / "result.json").read_text())["held_out_loss"] < 3.6
    )


def test_a_loss_that_stays_not_finite_is_given_up_and_the_checkpoint_kept(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        train(tmp_path, tiny(retrain__steps=60, run__checkpoint_every=100), StopAt(5))
    kept = (tmp_path / "checkpoint.pt").read_bytes()
    with pytest.raises(RunFailed, match="not finite in 20 steps in a row.*lower the learning rate"):
        train(tmp_path, tiny(retrain__steps=60, retrain__lr=1e30, retrain__clip=1e30, run__checkpoint_every=100))
    assert (tmp_path / "checkpoint.pt").read_bytes() == kept and not (tmp_path / "result.json").exists()


def test_a_loss_that_stays_not_finite_goes_back_once_to_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From step 11 on the loss of the first network is made NaN."""
    import nas.training.losses
    import nas.training.train

    plain, seen = nas.training.losses.batch_loss, []

    def broken(model: nn.Module, *arguments: Any) -> tuple[Tensor, None]:
        loss, _ = plain(model, *arguments)
        if model.training:
            seen.append(model)
        return loss * math.nan if model is seen[0] and len(seen) > 10 else loss, None

    optimizers: list[torch.optim.Optimizer] = []
    built = nas.training.train.build_adamw
    monkeypatch.setattr(
        nas.training.train, "build_adamw", lambda *arguments: optimizers.append(built(*arguments)) or optimizers[-1]
    )
    monkeypatch.setattr(nas.training.losses, "batch_loss", broken)
    config = tiny(retrain__steps=40, run__checkpoint_every=4, run__log_every=1, retrain__evaluate_every=100)
    train(tmp_path, config)
    # 20 bad ones, then from step 8 to the end
    assert len(optimizers) == 2 and seen.count(seen[0]) == 30 and len(seen) == 30 + 32
    lines = metrics(tmp_path)
    assert [line["step"] for line in lines] == list(range(1, 41)) and all(math.isfinite(line["loss"]) for line in lines)
    assert json.loads((tmp_path / "result.json").read_text())["steps"] == 40
    rates = [group["lr"] / group["lr_scale"] for group in optimizers[-1].param_groups]
    assert rates == pytest.approx([3e-3 * SLOWER * learning_rate(39, 40)] * len(rates))


def test_without_a_checkpoint_it_goes_back_to_the_start_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    config = tiny(retrain__steps=60, retrain__lr=1e30, retrain__clip=1e30, run__checkpoint_every=100)
    with pytest.raises(RunFailed, match="not finite in 20 steps in a row"):
        train_architecture(architecture(config), setup_of(config), tmp_path, 0, stop=StopFlag())
    assert (
        capsys.readouterr().err.count(
            "warning: the loss was not finite in 20 steps in a row: back to step 0 with 0.3 of the learning"
        )
        == 1
    )


def test_a_row_of_bad_steps_writes_no_checkpoint_over_a_good_one(tmp_path: Path) -> None:
    config = tiny()
    state = build_training(architecture(config), setup_of(config), 0)
    state.bad = torch.tensor(2)
    save_state(state, tmp_path, CPU)
    assert not list(tmp_path.iterdir())
    state.bad, state.step = torch.tensor(0), 5
    save_state(state, tmp_path, CPU)
    state.bad, state.step = torch.tensor(1), 6
    save_state(state, tmp_path, CPU)
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["step"] == 5


def spoilt(state: TrainState, value: float) -> float:
    """Put a value into the first embedding and return what stood there."""
    with torch.no_grad():
        before = float(state.model.embedding.weight[32, 0])  # a space, which every batch has
        state.model.embedding.weight[32, 0] = value
    return before


def test_bad_steps_are_counted_in_a_row_and_too_many_raise() -> None:
    config = tiny()
    state, corpus = (
        build_training(architecture(config), setup_of(config), 0),
        load_corpus(config.data),
    )
    good = spoilt(state, math.inf)
    for count in range(1, 20):
        train_step(state, Setup(config, corpus, CPU), 0)
        assert state.bad_steps == count == state.step
    spoilt(state, good)
    train_step(state, Setup(config, corpus, CPU), 0)
    assert state.bad_steps == 0
    spoilt(state, math.nan)
    for _ in range(19):
        train_step(state, Setup(config, corpus, CPU), 0)
    with pytest.raises(NotFinite, match="in 20 steps in a row .last loss nan."):
        train_step(state, Setup(config, corpus, CPU), 0)


def test_a_device_that_is_read_seldom_notices_bad_steps_when_it_is_read() -> None:
    config = tiny(**REMEMBERS, retrain__steps=100)
    state, corpus = (
        build_training(architecture(config), setup_of(config), 0),
        load_corpus(config.data),
    )
    seldom = dataclasses.replace(CPU, read_every=7)
    spoilt(state, math.inf)
    before = {name: value.clone() for name, value in state.model.state_dict().items()}
    for step in range(1, 21):
        train_step(state, Setup(config, corpus, seldom), 0)
        assert state.bad_steps == step
        assert state.memory is None if step % 7 == 0 else not state.memory.any()
    with pytest.raises(NotFinite, match="in 21 steps in a row"):
        train_step(state, Setup(config, corpus, seldom), 0)
    assert_equal(dict(state.model.state_dict()), before)
    assert all(float(moments["step"]) == 0 for moments in state.optimizer.state.values())


def test_the_last_step_is_read_even_where_a_device_is_read_seldom(tmp_path: Path) -> None:
    config = tiny(retrain__steps=29, retrain__lr=1e30, retrain__clip=1e30, run__checkpoint_every=100)
    with pytest.raises(RunFailed, match="not finite in 2[0-9] steps in a row"):
        seldom = setup_of(config, dataclasses.replace(CPU, read_every=10))
        train_architecture(architecture(config), seldom, tmp_path, 0, stop=StopFlag())
    assert not (tmp_path / "result.json").exists()


def test_no_step_is_taken_on_a_loss_that_is_not_finite_in_any_precision() -> None:
    """A GradScaler looks at the gradients alone; an optimizer is left as it was found."""
    for enabled in (False, True):
        weight, scaler = nn.Parameter(torch.ones(3)), torch.amp.GradScaler("cpu", enabled=enabled)
        optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
        for finite in (False, True):
            scaler.scale(weight.sum()).backward()
            norm_clipped(with_gradients(optimizer), optimizer, scaler, 1.0)
            step_where(torch.tensor(finite), optimizer, scaler)
            assert bool((weight == 1).all()) != finite and not hasattr(optimizer, "found_inf")
            weight.grad = None


class Favourite(nn.Module):
    """Gives the token 32 (a space) logit 2 and every other 0, in eval mode; in training mode something else."""

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [B, T] -> logits [B, T, 256]."""
        logits = torch.zeros(*tokens.shape, 256)
        logits[..., 32] = 5.0 if self.training else 2.0
        return logits


def test_evaluation_weighs_every_target_once_in_eval_mode(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"ab c" * 501)
    config = tiny(data__name="text", data__path=str(path))
    corpus = load_corpus(config.data)
    model = Favourite().train()
    result = evaluate(model, Setup(config, corpus, CPU), "held_out")
    text = corpus.part("held_out").tolist()
    wanted = np.mean([math.log(255 + math.exp(2)) - 2 * (token == 32) for token in text[1:]])
    assert result.tokens == len(text) - 1 and result.tokens % 16 != 0  # a short last row is there
    assert result.loss == pytest.approx(wanted, abs=1e-6) and model.training
    assert evaluate(model, Setup(config, corpus, CPU), "held_out", limit=32).tokens == 32
    rows = np.array(result.block_losses)
    assert result.standard_error == pytest.approx(rows.std(ddof=1) / math.sqrt(len(rows)))


@pytest.mark.parametrize("kind", ["missing", "torn", "other layout", "no safetensors", "folder"])
def test_wrong_weights_are_refused_by_file(tmp_path: Path, kind: str) -> None:
    config, path = tiny(), tmp_path / "model.safetensors"
    model = build(architecture(config))
    save_weights(build(architecture(config, "ff")) if kind == "other layout" else model, path)
    if kind == "torn":
        path.write_bytes(path.read_bytes()[:-40])
    if kind in ("missing", "folder"):
        path.unlink()
    if kind == "folder":
        path.mkdir()
    if kind == "no safetensors":
        path.write_bytes(b"\xff" * 100)
    with pytest.raises(UserError, match="model.safetensors: ") as error:
        load_weights(model, path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 600


def test_saved_weights_are_whole_and_tied_ones_too(tmp_path: Path) -> None:
    model = build(architecture(tiny(), tie_embeddings=True))
    save_weights(model, tmp_path / "model.safetensors")
    other = build(architecture(tiny(), tie_embeddings=True))
    load_weights(other, tmp_path / "model.safetensors")
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_every_architecture_sees_the_same_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[bytes]] = {"s": [], "ff": []}
    known = TASKS["causal_lm"]
    for pattern, batches in seen.items():

        def recording(corpus: Corpus, part: str, *arguments: Any, batches: list = batches, **options: Any) -> Any:
            assert part == "weights"
            batch = known.training_batch(corpus, part, *arguments, **options)
            batches.append(batch.tokens.tobytes())
            return batch

        monkeypatch.setitem(TASKS, "causal_lm", dataclasses.replace(known, training_batch=recording))
        train(tmp_path / pattern, tiny(retrain__steps=4), pattern=pattern)
    assert seen["s"] == seen["ff"] and len(set(seen["s"])) == 4
