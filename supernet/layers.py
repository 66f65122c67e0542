"""One layer: a block with its norm and residual, and the supernet's gated sum of several."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from supernet.attention import Past, Relative, is_hooked, with_memory
from supernet.blocks import Candidate, all_options, block_class
from supernet.context import Context
from supernet.settings import ModelSettings
from supernet.shared_values import attend_together, tie_values


class Mixture(NamedTuple):
    """What a mixed layer makes of its input: gates [C] and the candidates that run; without gates the one that stands
    alone."""

    gates: Tensor | None
    active: Sequence[int]


class Layer(nn.Module):
    """F(X) = X + Block(Norm(X)) with norm "pre", Norm(X + Block(X)) with "post". x [B, T, d] -> [B, T, d]."""

    def __init__(self, candidate: Candidate, settings: ModelSettings, layer: int):
        super().__init__()
        self.norm = nn.LayerNorm(settings.d_model)
        self.block = build_block(candidate, settings, layer)
        self.dropout = nn.Dropout(settings.dropout)
        self.pre = settings.norm == "pre"
        self.attends = getattr(self.block, "attends", False)
        self.candidate, self.number = candidate, layer

    @property
    def streams(self) -> bool:
        """Whether `extend` serves: the block's very class is of this package, and no hook is set on any of its modules,
        the norm's too.

        Any other may look at all positions, and `extend` does not call every module.
        """
        hooked = any(map(is_hooked, self.modules()))
        return not hooked and type(self.block).__module__.partition(".")[0] == __name__.partition(".")[0]

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """`context.memory` holds this layer's earlier inputs, before the norm."""
        normalise = self.norm if self.pre else _unchanged
        if self.attends and context.memory is not None:
            both = normalise(with_memory(x, context.memory))
            memory, inputs = both.split((context.memory.shape[1], x.shape[1]), dim=1)
            y = self.block(inputs, mask=context.mask, memory=memory, relative=context.relative)
        elif self.attends:
            y = self.block(normalise(x), mask=context.mask, relative=context.relative)
        else:
            y = self.block(normalise(x), mask=context.mask)
        if getattr(y, "shape", None) != x.shape:
            made = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
            raise ValueError(f"{type(self.block).__name__} made {made} of {tuple(x.shape)}, but must keep the shape")
        return self._added(x, y)

    def extend(self, x: Tensor, past: Past | None, relative: Relative | None) -> tuple[Tensor, Past | None]:
        """The outputs of the positions x [B, t, d] after those of `past`, and the past with x; see Attending.extend."""
        if not self.attends:
            return self(x, Context()), None
        y, past = self.block.extend(self.norm(x) if self.pre else x, past, relative)
        return self._added(x, y), past

    def _added(self, x: Tensor, y: Tensor) -> Tensor:
        y = x + self.dropout(y)
        return y if self.pre else self.norm(y)


class IdentityLayer(nn.Module):
    """F(X) = X: no block, no norm, no residual."""

    streams = True

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """x [B, T, d] -> x."""
        return x

    def extend(self, x: Tensor, past: Past | None, relative: Relative | None) -> tuple[Tensor, None]:
        """x [B, t, d] -> x, and no past."""
        return x, None


class MixedLayer(nn.Module):
    """sum_c gate_c F_c(X) over the candidates c (PAR, section 2); with `share_values` see supernet.shared_values."""

    def __init__(
        self, candidates: Sequence[Candidate], settings: ModelSettings, layer: int, *, share_values: bool = False
    ):
        super().__init__()
        self.candidates = nn.ModuleList(build_layer(candidate, settings, layer) for candidate in candidates)
        tied = tie_values(self.candidates) if share_values else []
        # a norm after the residual cannot be taken out of the sum
        self.tied = set(tied) if settings.norm == "pre" else set()

    def forward(self, x: Tensor, context: Context, mixture: Mixture) -> Tensor:
        """x [B, T, d] -> [B, T, d]."""
        if mixture.gates is None:
            return context.run(self.candidates[mixture.active[0]], x)
        together = [index for index in mixture.active if index in self.tied]
        alone = mixture.active if len(together) < 2 else [index for index in mixture.active if index not in self.tied]
        terms = [context.run(partial(_times, self.candidates[index]), x, mixture.gates[index]) for index in alone]
        if len(together) >= 2:
            layers = [self.candidates[index] for index in together]
            # indexing by a list would wait for the device
            gates = torch.stack([mixture.gates[index] for index in together])
            terms.append(context.run(partial(attend_together, layers), x, gates))
        return sum(terms)


def _times(layer: nn.Module, x: Tensor, gate: Tensor, context: Context) -> Tensor:
    """gate * F(X): one function, so that F(X) itself is not kept for the gate's gradient where it is recomputed."""
    return gate * layer(x, context)


def build_layer(candidate: Candidate, settings: ModelSettings, layer: int) -> nn.Module:
    """The candidate as layer number `layer` (from 0), with norm and residual."""
    return IdentityLayer() if candidate.block == "identity" else Layer(candidate, settings, layer)


def build_block(candidate: Candidate, settings: ModelSettings, layer: int) -> nn.Module:
    """The bare block of a candidate."""
    cls = block_class(candidate.block)
    options = all_options(candidate, settings)
    if getattr(cls, "needs_layer", False):
        options["layer"] = layer
    return cls(settings, **options)


def _unchanged(x: Tensor) -> Tensor:
    return x
