"""Dot-product self-attention, and what every attention-like block shares: heads, masks, value and output projections.

Shapes: B batch, T length of the segment, M memory, K = M' + T keys (M' <= M the filled memory), h heads, d width, d_h =
d / h. Where a segment is read in pieces, T are the positions at hand, and K also counts those of the segment that were
read before.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from supernet.masks import allowed_keys, query_bias
from supernet.settings import ModelSettings


class Relative(NamedTuple):
    """Relative positions of one forward pass: encodings [E, d] and the biases u and v [d]; None where every block has
    its own.

    Row c encodes the distance K-1-c: from K-1 down to 0 in a causal model (E = K), to -(T-1) in others (E = K + T - 1).
    """

    encodings: Tensor
    u: Tensor | None
    v: Tensor | None


class Past(NamedTuple):
    """What an attending block knows of the K positions it has read, the `filled` ones of its memory first.

    `values` [B, h, K, d_h], `keys` the same and `relative` with its encodings projected, [1, h, E, d_h]; None where the
    logits need none. `rooms` are larger tensors whose first positions values and keys are, once something was appended.
    """

    values: Tensor
    keys: Tensor | None = None
    relative: Relative | None = None
    filled: int = 0
    rooms: tuple[Tensor | None, Tensor | None] = (None, None)

    def append(self, values: Tensor, keys: Tensor | None) -> "Past":
        """With further positions [B, h, t, d_h], which are written into the rooms: of one past only one continuation
        holds."""
        values, room = _appended(self.values, values, self.rooms[0])
        keys, other = (None, None) if keys is None else _appended(self.keys, keys, self.rooms[1])
        return self._replace(values=values, keys=keys, rooms=(room, other))

    def last(self, length: int) -> "Past":
        """The memory of the next segment: the last positions, up to so many."""
        start = max(0, self.values.shape[2] - length)
        values, keys = (None if seen is None else seen[:, :, start:] for seen in (self.values, self.keys))
        return Past(values, keys, self.relative, filled=values.shape[2])


def _appended(seen: Tensor, new: Tensor, room: Tensor | None) -> tuple[Tensor, Tensor]:
    """seen [B, h, K, d_h] with new [B, h, t, d_h] behind it, and its room; copied only where that is full, into one
    twice as large."""
    length, end = seen.shape[2], seen.shape[2] + new.shape[2]
    if room is None or room.shape[2] < end:
        room = new.new_empty(*new.shape[:2], 2 * end, new.shape[3])
        room[:, :, :length] = seen
    room[:, :, length:end] = new
    return room[:, :, :end], room


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, T, d] -> [B, h, T, d_h]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """[B, h, T, d_h] -> [B, T, d]."""
    return x.transpose(1, 2).flatten(2)


def is_hooked(module: nn.Module) -> bool:
    """Whether somebody looks at the module's calls, so that none may be left out."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def with_memory(x: Tensor, memory: Tensor | None) -> Tensor:
    """The keys' inputs: memory [B, M', d] before the segment [B, T, d]."""
    return x if memory is None else torch.cat((memory, x), dim=1)


def output_projection(inputs: int, outputs: int, *, bias: bool) -> nn.Linear:
    """A block's last projection, initially a quarter of nn.Linear's law: residual branches that start small train
    faster."""
    projection = nn.Linear(inputs, outputs, bias=bias)
    with torch.no_grad():
        projection.weight.mul_(0.25)
    return projection


class Attending(nn.Module):
    """Base of the blocks that look at other positions: x [B, T, d] -> [B, T, d], the values V mixed, times W_O.
    Subclasses `mix`.

    `logits` has a method `keys(x)` and a method `project_encodings(relative)`, which give what a Past holds of them.
    """

    attends = True

    def __init__(self, config: ModelSettings, logits: nn.Module):
        super().__init__()
        self.heads, self.causal = logits.heads, config.causal
        self.logits = logits
        self.value = nn.Linear(config.d_model, config.d_model, bias=False)
        self.output = output_projection(config.d_model, config.d_model, bias=False)

    def forward(
        self, x: Tensor, *, mask: Tensor | None = None, memory: Tensor | None = None, relative: Relative | None = None
    ) -> Tensor:
        """`mask` [B, T] bool, True = real token; `memory` [B, M', d], normalised as x is."""
        seen = self.read(with_memory(x, memory), relative=relative)
        if memory is not None:
            seen = seen._replace(filled=memory.shape[1])
        return self.output(self.mix(x, seen, mask))

    def extend(self, x: Tensor, past: Past | None, relative: Relative | None) -> tuple[Tensor, Past]:
        """The outputs of the positions x [B, t, d] after those of `past` in a causal model, [B, t, d], and the past
        with x.

        `relative` may reach further back than there are keys; it is projected where there is no past, and kept.
        """
        seen = self.read(x, past, relative)
        return self.output(self.mix(x, seen, None)), seen

    def read(self, x: Tensor, past: Past | None = None, relative: Relative | None = None) -> Past:
        """The past with x [B, T, d]; without one x is all there is."""
        values, keys = split_heads(self.value(x), self.heads), self.logits.keys(x)
        if past is None:
            return Past(values, keys, self.logits.project_encodings(relative))
        return past.append(values, keys)

    def mix(self, x: Tensor, seen: Past, mask: Tensor | None) -> Tensor:
        """The values of `seen`, in which x stands last, as the queries x [B, T, d] weigh them: [B, T, d]."""
        raise NotImplementedError


class DotProductLogits(nn.Module):
    """S = Q K^T / sqrt(d_h) (Vaswani et al. 2017, eq. 1), with relative positions those of Dai et al. 2019, section
    3.3:

    S = ((q_i + u) k_j + (q_i + v) W_R r_{i-j}) / sqrt(d_h), no biases in the projections.
    """

    no_decay = ("biases",)

    def __init__(self, config: ModelSettings, heads: int):
        super().__init__()
        self.heads, self.causal = heads, config.causal
        self.query = nn.Linear(config.d_model, config.d_model, bias=False)
        self.key = nn.Linear(config.d_model, config.d_model, bias=False)
        self.position = nn.Linear(config.d_model, config.d_model, bias=False) if config.position == "relative" else None
        self.biases = None
        if config.position == "relative" and not config.share_biases:
            self.biases = nn.Parameter(torch.zeros(2, config.d_model))

    def keys(self, x: Tensor) -> Tensor:
        """[B, T, d] -> [B, h, T, d_h]."""
        return split_heads(self.key(x), self.heads)

    def project_encodings(self, relative: Relative | None) -> Relative | None:
        """The same with encodings [1, h, E, d_h]; None where positions are not relative."""
        if self.position is None or relative is None:
            return None
        return relative._replace(encodings=split_heads(self.position(relative.encodings)[None], self.heads))

    def project(self, x: Tensor, seen: Past | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Queries [B, h, T, d_h], keys [B, h, K, d_h], and the position logits [B, h, T, K] (None without relative)."""
        query = self.query(x)
        keys = self.keys(x) if seen is None else seen.keys
        if seen is None or seen.relative is None:
            return split_heads(query, self.heads), keys, None
        encodings, *shared = seen.relative
        u, v = shared if self.biases is None else self.biases
        if self.causal and encodings.shape[2] > keys.shape[2]:
            encodings = encodings[:, :, -keys.shape[2] :]  # they reach back to positions that are not there yet
        by_distance = split_heads(query + v, self.heads) @ encodings.transpose(-1, -2)
        scale = keys.shape[-1] ** -0.5
        return split_heads(query + u, self.heads), keys, _shift(by_distance, keys.shape[2]) * scale

    def forward(self, x: Tensor, seen: Past | None = None) -> Tensor:
        """x [B, T, d] -> logits [B, h, T, K], by heads in memory as the synthetic ones; without `seen` x is all there
        is."""
        query, keys, positions = self.project(x, seen)
        logits = (query.transpose(0, 1) @ keys.transpose(0, 1).transpose(-1, -2)).transpose(0, 1) * keys.shape[
            -1
        ] ** -0.5
        return logits if positions is None else logits + positions


class SelfAttention(Attending):
    """Y = softmax(S) V W_O with the dot-product logits S, in torch's fused kernel. x [B, T, d] -> [B, T, d].

    Queries that may see no key at all give 0.
    """

    def __init__(self, config: ModelSettings, *, heads: int):
        super().__init__(config, DotProductLogits(config, heads))

    def mix(self, x: Tensor, seen: Past, mask: Tensor | None) -> Tensor:
        """`mask` [B, T] bool, True = real token."""
        query, keys, positions = self.logits.project(x, seen)
        return attend(x, query, keys, seen.values, causal=self.causal, mask=mask, positions=positions)


def attend(
    x: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    causal: bool,
    mask: Tensor | None,
    positions: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """softmax(scale Q K^T + positions) V over the allowed keys in torch's fused kernel, [B, T, d]; scale is 1 /
    sqrt(d_h) by default.

    query [B, h, T, d_h], keys and values [B, h, K, d_h], positions [B, h, T, K]; `x` and `mask` are the block's.
    """
    if mask is None and positions is None and keys.shape[2] == query.shape[2]:
        mixed = functional.scaled_dot_product_attention(query, keys, values, is_causal=causal, scale=scale)
        return merge_heads(mixed)
    bias = _kernel_mask(x, keys.shape[2], causal, mask, positions)
    mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=bias, scale=scale)
    if mask is not None:
        mixed = _zero_blind_queries(mixed, x, keys.shape[2], causal, mask)
    return merge_heads(mixed)


def _kernel_mask(x: Tensor, keys: int, causal: bool, mask: Tensor | None, positions: Tensor | None) -> Tensor | None:
    """What the kernel adds to the logits (float) or lets through (bool)."""
    if positions is not None and mask is None:
        bias = query_bias(x, keys) if causal else None
        return positions if bias is None else positions + bias.to(positions.dtype)
    allowed = allowed_keys(x, keys, causal=causal, mask=mask)
    return allowed if positions is None else positions.masked_fill(~allowed, float("-inf"))


def _zero_blind_queries(mixed: Tensor, x: Tensor, keys: int, causal: bool, mask: Tensor) -> Tensor:
    """Kernels differ in what a query without any key yields (0, a mean, NaN): make it 0, with a zero gradient."""
    sees_any = allowed_keys(x, keys, causal=causal, mask=mask).any(dim=-1, keepdim=True)
    return torch.where(sees_any, mixed, torch.zeros((), dtype=mixed.dtype, device=mixed.device))


def _shift(by_distance: Tensor, keys: int) -> Tensor:
    """[B, h, T, E], column c for distance K-1-c -> [B, h, T, K], column j for key j (Dai et al. 2019, app. B).

    Row i moves left by T-1-i. With E = K, what is moved in from the next row lies in the future, which the causal mask
    hides.
    """
    batch, heads, length, encodings = by_distance.shape
    padded = functional.pad(by_distance, (1, 0)).view(batch, heads, encodings + 1, length)
    return padded[:, :, 1:].view(batch, heads, length, encodings)[..., :keys]
