"""From alphas to gates: pure functions. Shapes: N layers, C candidates; alphas and gates [N, C], gates' rows sum to 1.

Everything here is computed in fp32 (fp64 for alphas in fp64) whatever autocast says: half-precision noise can be
infinite.
"""

import torch
from torch import Tensor
from torch.nn import functional


def softmax_gates(alphas: Tensor, noise: Tensor, temperature: float) -> Tensor:
    """g = softmax(alphas / temperature): the soft mixture of DARTS (Liu et al. 2019, eq. 2); the noise is not used."""
    return torch.softmax(full_precision(alphas) / temperature, dim=-1)


def gumbel_gates(alphas: Tensor, noise: Tensor, temperature: float) -> Tensor:
    """g = softmax((alphas + noise) / temperature): the concrete relaxation (Jang et al. 2017, eq. 2; PAR)."""
    return torch.softmax((full_precision(alphas) + noise) / temperature, dim=-1)


def gumbel_hard_gates(alphas: Tensor, noise: Tensor, temperature: float) -> Tensor:
    """One-hot at the largest alphas + noise in the forward pass; the gradient is that of `gumbel_gates`
    (straight-through)."""
    soft = gumbel_gates(alphas, noise, temperature)
    hard = functional.one_hot(soft.argmax(dim=-1), soft.shape[-1]).to(soft.dtype)
    return (hard - soft).detach() + soft


def sampled_gates(alphas: Tensor, noise: Tensor, temperature: float) -> Tensor:
    """One-hot drawn from softmax(alphas / temperature) by the Gumbel-max trick; constant, so only that candidate has to
    run.

    The alphas' gradient then comes from `score_function_loss`, which needs the losses of sampled layouts and no gates.
    """
    logits = full_precision(alphas.detach()) / temperature
    return functional.one_hot((logits + noise).argmax(dim=-1), alphas.shape[-1]).to(logits.dtype)


RELAXATIONS = {
    "softmax": softmax_gates,
    "gumbel": gumbel_gates,
    "gumbel_hard": gumbel_hard_gates,
    "sampled": sampled_gates,
}


def keep_largest(gates: Tensor, active: int) -> Tensor:
    """The `active` largest gates of each row, renormalised to 1; the others are 0, so their candidates need not run.

    Ties at the border keep every candidate that is equal. The gradient is that of a softmax over the kept candidates.
    """
    if active >= gates.shape[-1]:
        return gates
    border = gates.detach().topk(active, dim=-1).values[..., -1:]
    kept = gates * (gates.detach() >= border)
    return kept / kept.sum(dim=-1, keepdim=True)


def full_precision(values: Tensor) -> Tensor:
    """The values in fp32 where they are in less."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def gumbel_noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Standard Gumbel noise in fp32, always finite: -log of an exponential draw that is kept away from 0."""
    exponential = torch.empty(shape, dtype=torch.float32, device=generator.device).exponential_(generator=generator)
    return -exponential.clamp_min(torch.finfo(torch.float32).tiny).log()


def temperature_at(step: int, *, first: int, last: int, start: float, end: float) -> float:
    """Temperature of a step: `start` up to step `first`, `end` from step `last` on, exactly; geometric in between."""
    if step <= first or first >= last:
        return start if step < last else end
    if step >= last:
        return end
    return start * (end / start) ** ((step - first) / (last - first))


def score_function_loss(alphas: Tensor, choices: Tensor, losses: Tensor) -> Tensor:
    """A scalar whose gradient estimates d E[loss] / d alphas from K layouts drawn from softmax(alphas).

    choices [K, N] (int64), losses [K] of those layouts on one batch, K >= 2. The gradient is 1/K sum_k (loss_k - mean
    of the other losses) d log p(choices_k) / d alphas (Williams 1992; leave-one-out baseline of Kool et al. 2019):
    unbiased for layouts drawn independently, and a batch's difficulty cancels.
    """
    others = (losses.sum() - losses) / (len(losses) - 1)
    log_p = torch.log_softmax(full_precision(alphas), dim=-1)
    chosen = log_p.expand(len(choices), *log_p.shape).gather(-1, choices.unsqueeze(-1)).sum(dim=(1, 2))
    return ((losses - others).detach().to(chosen.dtype) * chosen).mean()


def mean_entropy(probabilities: Tensor) -> Tensor:
    """Mean over layers of the entropy of the rows of [N, C], in nats."""
    return torch.special.entr(probabilities).sum(dim=-1).mean()
