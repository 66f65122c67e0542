"""Which candidates run in a step of the search: a function of (seed, step) and the alphas alone."""

import torch
from torch import Tensor

from nas.config.sections import Config, SearchConfig
from nas.machine.process import generator_from
from supernet.gates import RELAXATIONS, gumbel_noise, keep_largest, temperature_at


def weight_gates(alphas: Tensor, config: Config, seed: int, step: int) -> Tensor:
    """Gates [N, C] of a weight step, from alphas [N, C] without gradient; on the CPU, so that nothing waits for a
    device.

    The relaxation's gates at the alphas. Only in the warm-up of `sampled` do the alphas not matter: at first every
    candidate runs at equal gates, which leads the shared weights away from a bigram model's loss, then each runs
    equally often (Chu et al. 2021, FairNAS).
    """
    settings = config.search
    layers, candidates = alphas.shape
    if settings.relaxation == "sampled" and step < settings.warmup_steps:
        if step < settings.mixture * settings.warmup_steps:
            return torch.full((layers, candidates), 1 / candidates)
        return fair_path(layers, candidates, seed, step)
    noise = gumbel_noise((layers, candidates), generator_from(seed, "weight gates", step))
    return relaxed_gates(settings, alphas, noise, step)


def fair_path(layers: int, candidates: int, seed: int, step: int) -> Tensor:
    """One-hot gates [N, C]: in every C steps each candidate of each layer runs once, in an order drawn anew, apart for
    each layer."""
    turn, place = divmod(step, candidates)
    generator = generator_from(seed, "fair order", turn)
    orders = torch.stack([torch.randperm(candidates, generator=generator) for _ in range(layers)])  # [N, C]
    return torch.nn.functional.one_hot(orders[:, place], candidates).float()


def relaxed_gates(settings: SearchConfig, alphas: Tensor, noise: Tensor, step: int) -> Tensor:
    """The relaxation's gates [N, C] at a step; of `gumbel` only the `search.active` largest a layer are kept."""
    at = 1.0 if settings.relaxation == "sampled" else temperature(settings, step)  # the alphas' step draws at 1 as well
    gates = RELAXATIONS[settings.relaxation](alphas, noise, at)
    if settings.relaxation == "gumbel" and settings.active is not None:
        gates = keep_largest(gates, settings.active)
    return gates


def temperature(settings: SearchConfig, step: int) -> float:
    """The temperature of a step: constant in the warm-up, then from start to end, exactly at both ends."""
    return temperature_at(
        step,
        first=settings.warmup_steps,
        last=settings.steps - 1,
        start=settings.temperature_start,
        end=settings.temperature_end,
    )
