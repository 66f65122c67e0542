"""What the layers of a network share while it runs."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from supernet.attention import Relative


class Context(NamedTuple):
    """What a layer sees beside its input: padding mask [B, T], its memory [B, M', d], relative positions.

    With `recompute` what lies within a layer is not kept for the backward pass but computed again there.
    """

    mask: Tensor | None = None
    memory: Tensor | None = None
    relative: Relative | None = None
    recompute: bool = False

    def run(self, function: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
        """function(*arguments, self), recomputed in the backward pass where that is asked for (Chen et al. 2016)."""
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(function, *arguments, self, use_reentrant=False)
        return function(*arguments, self)
