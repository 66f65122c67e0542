"""Optimizers, learning rates and clipping, shared by the search and the plain training."""

import math

import torch
from torch import nn

from nas.machine.distributed import is_shared
from nas.machine.startup import loading
from supernet.backbone import parameter_groups


def build_adamw(model: nn.Module, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW over every parameter but the alphas; decay for matrices only. Parameters without a gradient are not
    updated.

    Fused: one kernel for all parameters, a fifth of the time of a loop over them on a CPU.
    """
    with loading():  # the first optimizer of a process loads torch's compiler
        return torch.optim.AdamW(parameter_groups(model, weight_decay), lr=lr, betas=(0.9, 0.98), eps=1e-9, fused=True)


def learning_rate(step: int, steps: int, *, floor: float = 0.0) -> float:
    """Factor of the peak rate at `step` of `steps`: linear over the first twentieth, then a cosine down to `floor`."""
    warmup = max(1, steps // 20)
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done))


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every group of the optimizer this rate, times its own `lr_scale`."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]


def with_gradients(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """The optimizer's parameters that have a gradient: of a supernet those of the candidates that ran."""
    return [
        parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.grad is not None
    ]


def norm_clipped(
    parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, clip: float
) -> torch.Tensor:
    """Clip the gradient of the optimizer's `parameters`, all together, to norm `clip`; returns the norm before, the
    whole model's."""
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(parameters, clip)
    return norm.full_tensor() if is_shared(norm) else norm


def step_where(finite: torch.Tensor, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
    """The optimizer's step where `finite`, a bool on the device, holds, else nothing; the device decides, nothing waits
    for it.

    Fused optimizers look at `found_inf` for it, as a GradScaler's own step has them do for the gradients alone.
    """
    optimizer.found_inf = (~finite).float()
    optimizer.step()
    del optimizer.found_inf
    scaler.update()
