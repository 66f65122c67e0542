"""The two steps of a search: of the weights and of the alphas, each on its own part of the text."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from nas.config.sections import SearchConfig
from nas.costs.costs_table import CostTable
from nas.data.batches import Batch, Place
from nas.machine.distributed import average, require_equal
from nas.machine.process import generator_from, seed_dropout
from nas.searching.search_gates import relaxed_gates, temperature, weight_gates
from nas.searching.search_state import SearchState
from nas.training.losses import join_memories, part_losses, set_mode
from nas.training.optimizers import learning_rate
from nas.training.setup import Setup
from supernet.gates import gumbel_noise, sampled_gates, score_function_loss
from supernet.supernet import Supernet

Run = Callable[..., Iterator[tuple[Tensor, Tensor | None]]]  # gates -> part_losses of a step's batch


def weight_step(state: SearchState, setup: Setup, seed: int) -> dict[str, Tensor | float]:
    """One AdamW step of the weights on the `weights` part; the alphas stay as they are, bit for bit."""
    config, step, net = setup.config, state.step, state.model
    gates = weight_gates(state.host_alphas(), config, seed, step)
    seed_dropout(setup.machine, seed, "dropout", step)
    batch = _batch(setup, "weights", Place(seed, "weights", step, segment=step), net.memory_len)
    set_mode(net, training=True)
    net.recompute = config.run.recompute == "all"
    net.alphas.requires_grad_(False)
    try:
        losses = part_losses(net, batch, setup, gates, memory=state.memory)
        rate = config.search.weight_lr * learning_rate(step, config.search.steps, floor=0.05)
        loss = state.descend(losses, rate, config.search.clip, setup.machine, last=step + 1 == config.search.steps)
    finally:
        net.alphas.requires_grad_(True)
    return {"loss": loss, "temperature": temperature(config.search, step)}


def arch_step(state: SearchState, setup: Setup, costs: CostTable, seed: int) -> dict[str, Tensor]:
    """One Adam step of the alphas on the `alphas` part; the weights stay as they are, bit for bit.

    The gradient is that of the relaxation's gates; for `sampled` it is the score-function estimate over `arch_samples`
    layouts that run forward only, on one batch. The cost term's gradient is exact: expected cost is linear in the
    probabilities.
    """
    settings, net, step = setup.config.search, state.model, state.step - 1
    segment = (step - settings.warmup_steps) // settings.arch_every
    batch = _batch(setup, "alphas", Place(seed, "alphas", step, segment), net.memory_len)
    set_mode(net, training=False)  # no dropout: the alphas weigh blocks, not noise
    net.recompute = setup.config.run.recompute != "none"
    run = partial(part_losses, net, batch, setup, memory=state.arch_memory)
    if settings.relaxation == "sampled":
        gradient, mean, memory = _score_function(
            state, run, settings.arch_samples, generator_from(seed, "arch layouts", step)
        )
    else:
        noise = gumbel_noise(tuple(net.alphas.shape), generator_from(seed, "arch gates", step))
        gates = relaxed_gates(settings, net.alphas, noise.to(setup.machine.device, non_blocking=True), step)
        gradient, mean, memory = _gate_gradient(net, run, gates, settings)
    penalty = settings.cost_weight * costs.penalty(costs.expected(net.probabilities()))
    gradient += torch.autograd.grad(penalty, net.alphas)[0]
    require_equal(setup.machine, net.alphas, "alphas")
    average(setup.machine, [gradient, mean])
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


def _batch(setup: Setup, part: str, place: Place, memory_len: int) -> Batch:
    return setup.task.training_batch(
        setup.corpus, part, setup.config.data, place, memory_len=memory_len, share=setup.share
    )
