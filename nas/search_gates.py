"""Which candidates run in a step of the search, and on which rows: a function of (seed, step) and the alphas alone."""

import itertools

import torch
from torch import Tensor

from nas.config import Config, SearchConfig
from nas.machine import Machine
from nas.process import generator_from
from supernet.gates import RELAXATIONS, gumbel_noise, keep_largest, temperature_at
from supernet.supernet import Supernet, split_sizes


def weight_gates(net: Supernet, config: Config, seed: int, step: int, rows: int) -> Tensor:
    """Gates of a weight step on so many rows, those of all processes: [N, C], or [G, N, C] for G groups of them.

    The relaxation's gates at the alphas. Only in the warm-up of `sampled` every candidate runs: at first at equal gates, which
    leads the shared weights away from a bigram model's loss, then each on its share of the rows, so that all are trained
    equally (Chu et al. 2021, FairNAS) at the price of one candidate a layer.
    """
    settings = config.search
    layers, candidates = net.alphas.shape
    if settings.relaxation == "sampled" and step < settings.warmup_steps:
        if step < settings.mixture * settings.warmup_steps:
            return torch.full((layers, candidates), 1 / candidates)
        return fair_gates(layers, candidates, min(candidates, rows), generator_from(seed, "fair order", step))
    noise = gumbel_noise((layers, candidates), generator_from(seed, "weight gates", step))
    return relaxed_gates(settings, net.alphas.detach().cpu(), noise, step)


def fair_gates(layers: int, candidates: int, groups: int, generator: torch.Generator) -> Tensor:
    """One-hot gates [G, N, C]: in each layer every candidate gets another group of rows, so that one step trains all equally."""
    orders = torch.stack([torch.randperm(candidates, generator=generator)[:groups] for _ in range(layers)], dim=1)  # [G, N]
    return torch.nn.functional.one_hot(orders, candidates).float()


def own_rows(groups: int, batch_size: int, machine: Machine) -> list[int]:
    """How many of this process's rows lie in each group of the whole batch's; of its rows process r has r, r + world, ..."""
    ends = itertools.accumulate(split_sizes(machine.world * batch_size, groups), initial=0)
    before = [len(range(machine.rank, end, machine.world)) for end in ends]
    return [second - first for first, second in itertools.pairwise(before)]


def relaxed_gates(settings: SearchConfig, alphas: Tensor, noise: Tensor, step: int) -> Tensor:
    """The relaxation's gates [N, C] at a step; of `gumbel` only the `search.active` largest a layer are kept."""
    at = 1.0 if settings.relaxation == "sampled" else temperature(settings, step)  # the alphas' step draws at 1 as well
    gates = RELAXATIONS[settings.relaxation](alphas, noise, at)
    if settings.relaxation == "gumbel" and settings.active is not None:
        gates = keep_largest(gates, settings.active)
    return gates


def temperature(settings: SearchConfig, step: int) -> float:
    """The temperature of a step: constant in the warm-up, then from start to end, exactly at both ends."""
    return temperature_at(step, first=settings.warmup_steps, last=settings.steps - 1,
                          start=settings.temperature_start, end=settings.temperature_end)  # fmt: skip
