"""The search: weights and alphas trained in turn, each on its own part of the text.

Every random choice is a function of (seed, purpose, step), so a resumed run repeats an uninterrupted one bit for bit.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from derive.strict_json import write_json
from nas.batches import training_batch
from nas.checkpoint import MetricsLog
from nas.config import Config, SearchConfig
from nas.costs_table import CostTable
from nas.data import Corpus
from nas.distributed import average, require_equal, stop_asked
from nas.live import LiveView, TensorBoardLog
from nas.losses import join_memories, part_losses, set_mode
from nas.machine import Machine, compile_each
from nas.optimizers import build_adamw, learning_rate
from nas.process import generator_from, seed_dropout, seed_from, versions
from nas.scoring import write_layouts
from nas.search_gates import relaxed_gates, temperature, weight_gates
from nas.sharding import gathered_rows, scattered_rows, shard
from nas.stop import StopFlag
from nas.train import evaluate, passes
from nas.train_state import NotFinite, StepClock, TrainState, go_back, resume, save_state
from nas.verdict import judge
from supernet.gates import gumbel_noise, mean_entropy, sampled_gates, score_function_loss
from supernet.supernet import Supernet

Run = Callable[..., Iterator[tuple[Tensor, Tensor | None]]]  # gates -> part_losses of a step's batch
DRAWS = 2  # gates over which the supernet's held-out loss is averaged


@dataclass
class SearchState(TrainState):
    """All that a search changes, and what a resume needs; `optimizer` is that of the weights."""

    model: Supernet
    arch_optimizer: torch.optim.Optimizer = dataclasses.field(kw_only=True)
    recorded_steps: list[int] = dataclasses.field(default_factory=list)
    recorded: list[Tensor] = dataclasses.field(default_factory=list)  # probabilities [N, C] of those steps
    arch_memory: Tensor | None = None  # that of the alphas' rows

    _copied: tuple[int, Tensor] | None = None

    def host_alphas(self) -> Tensor:
        """The alphas [N, C] on the CPU, where layouts are drawn; from a GPU copied once after they have moved, so that
        no other step waits."""
        alphas = self.model.alphas.detach()
        if alphas.device.type == "cpu":
            return alphas
        if self._copied is None or self._copied[0] != alphas._version:
            self._copied = alphas._version, alphas.cpu()
        return self._copied[1]

    def to_checkpoint(self) -> dict[str, Any]:
        """Tensors and plain values only, so that it loads with weights_only=True."""
        return super().to_checkpoint() | {
            "arch_optimizer": self.arch_optimizer.state_dict(),
            "candidates": self.model.labels,
            "recorded_steps": list(self.recorded_steps),
            "recorded": torch.stack(self.recorded) if self.recorded else None,
            "arch_memory": gathered_rows(self.arch_memory),
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from `to_checkpoint`'s value."""
        super().load(saved)
        self.arch_optimizer.load_state_dict(saved["arch_optimizer"])
        self.arch_memory = scattered_rows(saved["arch_memory"], self.model)
        self.recorded_steps = list(saved["recorded_steps"])
        self.recorded = list(saved["recorded"]) if saved["recorded"] is not None else []


def build_state(config: Config, corpus: Corpus, machine: Machine, seed: int) -> SearchState:
    """A new supernet and its optimizers."""
    settings = config.model.settings(corpus.vocab_size, config.data.seq_len)
    torch.manual_seed(seed_from(seed, "initial weights"))
    values = {**settings.to_mapping(), "task": settings.task, "layers": config.model.layers}
    net = Supernet(values, config.candidates(settings), share_values=config.search.share_values).to(machine.device)
    if config.run.compile:
        compile_each(candidate for layer in net.layers for candidate in layer.candidates)
    if config.run.shard:
        shard(net, machine)
    return SearchState(
        net,
        build_adamw(net, config.search.weight_lr, config.search.weight_decay),
        machine.scaler(),
        arch_optimizer=torch.optim.Adam([net.alphas], lr=config.search.arch_lr, betas=(0.5, 0.999)),
    )


def run_search(
    config: Config,
    corpus: Corpus,
    costs: CostTable,
    folder: Path,
    seed: int,
    machine: Machine,
    stop: StopFlag,
    slot: int = 0,
    later: str = "",
) -> None:
    """Train a supernet and write `probabilities.json`, `layouts.json`, `metrics.jsonl` and `checkpoint.pt` into
    `folder`.

    Goes on from the folder's checkpoint where there is one. Raises Stopped on a signal after the step in flight, and
    RunFailed when the loss stays non-finite, at a lower learning rate as well.
    """
    settings = config.search
    state = build_state(config, corpus, machine, seed)
    resume(state, folder, machine)
    progress = tqdm(
        total=settings.steps, initial=state.step, desc=f"search seed {seed}{later}", position=slot, mininterval=1.0
    )
    live, board = LiveView(folder), TensorBoardLog(folder, config.run.tensorboard and machine.rank == 0, state.step)
    clock = StepClock(state.step)
    with (
        MetricsLog(folder / "metrics.jsonl", state.step) as metrics,
        progress,
        stop.deferred(),
        contextlib.closing(board),
    ):
        while state.step < settings.steps:
            try:
                with clock:
                    numbers = weight_step(state, config, corpus, machine, seed)
                    if (
                        state.step > settings.warmup_steps
                        and (state.step - settings.warmup_steps) % settings.arch_every == 0
                    ):
                        numbers |= arch_step(state, config, corpus, costs, machine, seed)
            except NotFinite as failure:
                state = go_back(state, partial(build_state, config, corpus, machine, seed), folder, machine, failure)
                metrics.cut(state.step)
                board.cut(state.step)
                clock = StepClock(state.step)
                continue
            progress.update(state.step - progress.n)
            if _due(state.step, config.run.log_every, settings.steps):
                speed = (
                    clock.steps_per_second(state.step, machine)
                    * machine.world
                    * config.data.batch_size
                    * config.data.seq_len
                )
                line = log_line(state, config, corpus, costs, machine, numbers) | {"tokens_per_second": round(speed, 1)}
                metrics.write(**line)
                board.write(line, state.recorded[-1])
                progress.set_postfix(
                    loss=line["loss"], entropy=line["entropy"], cost=line["expected_cost"], refresh=False
                )
            if state.step % config.run.checkpoint_every == 0 or state.step == settings.steps:
                save_state(state, folder, machine)
                write_probabilities(folder, state, costs, config, seed, verdict=None)
                if machine.rank == 0:
                    live.refresh()
            if stop_asked(machine, stop):
                save_state(state, folder, machine)
                stop.check()
    write_layouts(folder, state.model, config, corpus, costs, machine, seed)
    verdict = judge(state, config, corpus, machine, seed, folder / "metrics.jsonl")
    write_probabilities(folder, state, costs, config, seed, verdict=verdict)


def weight_step(
    state: SearchState, config: Config, corpus: Corpus, machine: Machine, seed: int
) -> dict[str, Tensor | float]:
    """One AdamW step of the weights on the `weights` part; the alphas stay as they are, bit for bit."""
    settings, step, net = config.search, state.step, state.model
    gates = weight_gates(state.host_alphas(), config, seed, step)
    seed_dropout(machine, seed, "dropout", step)
    batch = training_batch(
        corpus,
        "weights",
        config.data,
        machine,
        memory_len=net.memory_len,
        seed=seed,
        step=step,
        stream="weights",
        segment=step,
    )
    set_mode(net, training=True)
    net.recompute = config.run.recompute == "all"
    net.alphas.requires_grad_(False)
    try:
        losses = part_losses(net, batch, machine, gates, size=config.data.micro_batch_size, memory=state.memory)
        rate = settings.weight_lr * learning_rate(step, settings.steps, floor=0.05)
        loss = state.descend(losses, rate, settings.clip, machine, last=step + 1 == settings.steps)
    finally:
        net.alphas.requires_grad_(True)
    return {"loss": loss, "temperature": temperature(settings, step)}


def arch_step(
    state: SearchState, config: Config, corpus: Corpus, costs: CostTable, machine: Machine, seed: int
) -> dict[str, Tensor]:
    """One Adam step of the alphas on the `alphas` part; the weights stay as they are, bit for bit.

    The gradient is that of the relaxation's gates; for `sampled` it is the score-function estimate over `arch_samples`
    layouts that run forward only, on one batch. The cost term's gradient is exact: expected cost is linear in the
    probabilities.
    """
    settings, net, step = config.search, state.model, state.step - 1
    batch = training_batch(
        corpus,
        "alphas",
        config.data,
        machine,
        memory_len=net.memory_len,
        seed=seed,
        step=step,
        stream="alphas",
        segment=(step - settings.warmup_steps) // settings.arch_every,
    )
    set_mode(net, training=False)  # no dropout: the alphas weigh blocks, not noise
    net.recompute = config.run.recompute != "none"
    run = partial(part_losses, net, batch, machine, size=config.data.micro_batch_size, memory=state.arch_memory)
    if settings.relaxation == "sampled":
        gradient, mean, memory = _score_function(
            state, run, settings.arch_samples, generator_from(seed, "arch layouts", step)
        )
    else:
        noise = gumbel_noise(tuple(net.alphas.shape), generator_from(seed, "arch gates", step)).to(
            machine.device, non_blocking=True
        )
        gradient, mean, memory = _gate_gradient(net, run, relaxed_gates(settings, net.alphas, noise, step), settings)
    penalty = settings.cost_weight * costs.penalty(costs.expected(net.probabilities()))
    gradient += torch.autograd.grad(penalty, net.alphas)[0]
    require_equal(machine, net.alphas, "alphas")
    average(machine, [gradient, mean])
    finite = bool(torch.isfinite(mean) & torch.isfinite(gradient).all())  # waits for the device
    state.arch_memory = memory if finite else None
    if finite:
        net.alphas.grad = gradient
        torch.nn.utils.clip_grad_norm_([net.alphas], settings.clip)
        state.arch_optimizer.step()
        net.alphas.grad = None
    return {"arch_loss": mean}


def _gate_gradient(
    net: Supernet, run: Run, gates: Tensor, settings: SearchConfig
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(gradient of the alphas through their gates, loss, next memory)."""
    leaf, mean, memories = gates.detach().requires_grad_(), 0.0, []
    into_gates = torch.zeros_like(leaf)
    for loss, memory in run(leaf, skip_zeros=settings.relaxation == "gumbel"):
        into_gates += torch.autograd.grad(loss, leaf)[0]
        mean += loss.detach()
        memories.append(memory)
    return torch.autograd.grad(gates, net.alphas, into_gates)[0], mean, join_memories(memories)


def _score_function(
    state: SearchState, run: Run, samples: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(estimate of the alphas' gradient, mean loss of the layouts, next memory: that of the first layout)."""
    net, alphas = state.model, state.host_alphas()
    gates = [sampled_gates(alphas, gumbel_noise(tuple(alphas.shape), generator), 1.0) for _ in range(samples)]
    with torch.no_grad():
        found = [list(zip(*run(layout), strict=True)) for layout in gates]
    losses = torch.stack([sum(loss) for loss, _ in found])
    choices = torch.stack([layout.argmax(dim=-1) for layout in gates]).to(losses.device, non_blocking=True)
    (gradient,) = torch.autograd.grad(score_function_loss(net.alphas, choices, losses), net.alphas)
    return gradient, losses.mean(), join_memories(found[0][1])


def log_line(
    state: SearchState,
    config: Config,
    corpus: Corpus,
    costs: CostTable,
    machine: Machine,
    numbers: dict[str, Tensor | float],
) -> dict[str, Any]:
    """One line of metrics.jsonl; held-out figures only at the steps of `evaluate_every` and at the end."""
    settings, net = config.search, state.model
    with torch.no_grad():
        probabilities = net.probabilities()
        state.recorded_steps.append(state.step)
        state.recorded.append(probabilities.cpu().clone())
        line = {
            "step": state.step,
            "phase": "warmup" if state.step <= settings.warmup_steps else "search",
            **{name: float(number) for name, number in numbers.items()},
            "entropy": round(float(mean_entropy(probabilities)), 6),
            "expected_cost": round(float(costs.expected(probabilities)) / costs.baseline, 6),
            "held_out_loss": None,
            "derived_loss": None,
        }
        first_or_last = state.step in (1, settings.steps)
        if first_or_last or passes(state.step, settings.evaluate_every, config.run.log_every):
            line |= held_out_losses(net, config, corpus, machine, state.step - 1)
    return line


def held_out_losses(net: Supernet, config: Config, corpus: Corpus, machine: Machine, step: int) -> dict[str, float]:
    """`held_out_loss` of the supernet as it is trained, `derived_loss` of the most probable layout with inherited
    weights.

    The supernet's loss is the mean over DRAWS gates of the relaxation (the same noise at every step; `softmax` has
    none).
    """
    alphas = net.alphas.detach().cpu()
    best = one_hot_rows(alphas)
    generator = generator_from("held-out gates")
    draws = 1 if config.search.relaxation == "softmax" else DRAWS
    noise = [gumbel_noise(tuple(alphas.shape), generator) for _ in range(draws)]
    mixed = [relaxed_gates(config.search, alphas, one, step) for one in noise]
    limit = config.search.evaluate_tokens
    losses = [evaluate(net, corpus, "held_out", config, machine, limit=limit, gates=gates).loss for gates in mixed]
    derived = evaluate(net, corpus, "held_out", config, machine, limit=limit, gates=best).loss
    return {"held_out_loss": sum(losses) / len(losses), "derived_loss": derived}


def one_hot_rows(alphas: Tensor) -> Tensor:
    """One-hot gates [N, C] at each row's maximum (the first where equal)."""
    return torch.nn.functional.one_hot(alphas.argmax(dim=-1), alphas.shape[-1]).float()


def write_probabilities(
    folder: Path, state: SearchState, costs: CostTable, config: Config, seed: int, verdict: dict[str, Any] | None
) -> None:
    """`probabilities.json`: every recorded softmax(alphas), noise-free, with the costs and the verdict."""
    write_json(
        folder / "probabilities.json",
        {
            "candidates": state.model.labels,
            "steps": state.recorded_steps,
            "probabilities": [[[round(p, 7) for p in row] for row in matrix.tolist()] for matrix in state.recorded],
            "cost": {**costs.to_json(), "budget": config.search.budget},
            "seed": seed,
            "versions": versions(),
            "verdict": verdict or {"converged": False, "reasons": ["the search has not finished"]},
        },
    )


def _due(step: int, every: int, last: int) -> bool:
    return step == 1 or step == last or step % every == 0
