"""Maps that every row of a batch has for itself: made, softmaxed and applied as one node of autograd.

What a short segment costs on a CPU is passes over maps: by torch's own operations a step writes each map of a row's own
six times, and here twice where it takes all columns, the map and its gradient, each into the room of the logits it is
of. Heads come first, so that the h weights meet all rows in h products.

Shapes: h heads, B rows, T queries, K keys, w width of a head's features, d_h of its values. Logits [h, B, T, K].
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from supernet.masks import is_traced


def plus(fresh: Tensor, other: Tensor | None) -> Tensor:
    """fresh + other (None: 0), in place unless the sum has another dtype: a pass over a map costs as much as the
    product that makes it.

    `fresh` must be nobody else's, and no view: autograd would copy it for its gradient.
    """
    if other is None:
        return fresh
    return fresh.add_(other) if torch.promote_types(fresh.dtype, other.dtype) == fresh.dtype else fresh + other


def relu_heads(hidden: Tensor, heads: int) -> Tensor:
    """relu of [B, T, d_hidden] in heads, [h, B, T, d_hidden / heads]; written once, in a copy."""
    return hidden.unflatten(-1, (heads, -1)).permute(2, 0, 1, 3).clone(memory_format=torch.contiguous_format).relu_()


class Law(Protocol):
    """How logits are made of their parts, and the parts' gradients of the logits'."""

    def logits(self, *parts: Tensor) -> Tensor:
        """[h, B, T, K], a new contiguous tensor."""

    def gradients(self, grad: Tensor, needed: Sequence[bool], *parts: Tensor) -> tuple[Tensor | None, ...]:
        """Those of the parts that are needed, from that of the logits."""


class Product:
    """S = F W, features F [h, B, T, w] and weights W [h, w, K]."""

    def logits(self, features: Tensor, weight: Tensor) -> Tensor:
        """[h, B, T, K]."""
        return (features.flatten(1, 2) @ weight).view(*features.shape[:3], weight.shape[-1])

    def gradients(
        self, grad: Tensor, needed: Sequence[bool], features: Tensor, weight: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """dF = dS W^T, dW = F^T dS."""
        rows = grad.flatten(1, 2)
        into_features = (rows @ weight.transpose(1, 2)).view(features.shape) if needed[0] else None
        return into_features, features.flatten(1, 2).transpose(1, 2) @ rows if needed[1] else None


class Outer(NamedTuple):
    """S_j = A_{j div b} B_{j mod b}, one factor [h, B, T, a] repeated, one [h, B, T, b] tiled; of the a * b the
    `columns`."""

    columns: slice

    def logits(self, repeated: Tensor, tiled: Tensor) -> Tensor:
        """[h, B, T, K]."""
        return (repeated.unsqueeze(-1) * tiled.unsqueeze(-2)).flatten(-2)[..., self.columns].contiguous()

    def gradients(
        self, grad: Tensor, needed: Sequence[bool], repeated: Tensor, tiled: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """By products of small matrices, a third faster than to multiply and sum."""
        a, b = repeated.shape[-1], tiled.shape[-1]
        if grad.shape[-1] < a * b:
            whole = grad.new_zeros(*grad.shape[:-1], a * b)
            whole[..., self.columns] = grad
            grad = whole
        each = grad.unflatten(-1, (a, b))
        into_repeated = (each @ tiled.unsqueeze(-1)).squeeze(-1) if needed[0] else None
        return into_repeated, (repeated.unsqueeze(-2) @ each).squeeze(-2) if needed[1] else None


class Maps(NamedTuple):
    """The logits of maps of a row's own: by a law of its parts, plus an offset [h or 1, 1, T or 1, K] that all rows
    share, or None."""

    law: Law
    parts: tuple[Tensor, ...]
    offset: Tensor | None

    def logits(self) -> Tensor:
        """[B, h, T, K], by torch's own operations."""
        logits = self.law.logits(*self.parts)
        return (logits if self.offset is None else logits + self.offset).transpose(0, 1)

    def mix(self, values: Tensor) -> Tensor:
        """softmax(S) V for values [B, h, K, d_h]: [B, T, h * d_h]."""
        return _Mix.apply(values, self.offset, self.law, *self.parts)


def in_one_node(x: Tensor) -> bool:
    """Whether `Maps.mix` serves the input: on a CPU (nothing was measured elsewhere), in full precision, and where
    nobody traces."""
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64) or torch.is_autocast_enabled("cpu"):
        return False
    return not is_traced()


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, offset: Tensor | None, law: Law, *parts: Tensor) -> Tensor:
        logits = law.logits(*parts)
        logits = logits if offset is None else logits.add_(offset)
        maps, columns = torch.softmax(logits, dim=-1, out=logits).flatten(0, 1), _by_head(values)
        ctx.save_for_backward(maps, columns, *parts)
        ctx.law, ctx.logits_shape, ctx.offset_shape = law, logits.shape, None if offset is None else offset.shape
        mixed = (maps @ columns).view(*logits.shape[:3], columns.shape[-1])
        return mixed.permute(1, 2, 0, 3).flatten(2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "dense synthesizers have no second derivative on a CPU, as torch's fused attention has none"
            )
        maps, columns, *parts = ctx.saved_tensors
        heads, batch, *_ = ctx.logits_shape
        mixed = _by_head(grad.unflatten(-1, (heads, columns.shape[-1])).transpose(1, 2))  # [h * B, T, d_h]
        into_values = (maps.transpose(1, 2) @ mixed).view(heads, batch, *columns.shape[1:]).transpose(0, 1)
        inner = mixed @ columns.transpose(1, 2)
        torch.ops.aten._softmax_backward_data.out(inner, maps, -1, maps.dtype, grad_input=inner)
        into_logits = inner.view(ctx.logits_shape)
        into_offset = into_logits.sum_to_size(ctx.offset_shape) if ctx.needs_input_grad[1] else None
        return into_values, into_offset, None, *ctx.law.gradients(into_logits, ctx.needs_input_grad[3:], *parts)


def _by_head(rows: Tensor) -> Tensor:
    """[B, h, n, d_h] -> [h * B, n, d_h]."""
    return rows.transpose(0, 1).flatten(0, 1)
