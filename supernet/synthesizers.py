"""Synthesizer attention (Tay et al. 2020): Y = softmax(S(X)) V W_O whose logits S need no token-token products.

Each kind is a `...Logits` module giving S as [B or 1, h, T, K], plus what is `added` [T, K], the causal mask. Kinds
that do not look at the input have no batch axis of their own, so their map is computed once a forward pass. Maps are
built for the whole length L = max_len (and memory M) and cut to the T queries and K = M' + T keys at hand; column M + j
is the segment's key j. Synthetic logits are not scaled.
"""

import itertools
import math
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from supernet.attention import Attending, DotProductLogits, Past, Relative, attend, is_hooked
from supernet.attention_maps import Maps, Outer, Product, in_one_node, plus, relu_heads
from supernet.costs import factor_lengths
from supernet.gates import full_precision
from supernet.masks import allowed_keys, masked_softmax, query_bias
from supernet.settings import ModelSettings

MAP_NUMBERS = 2**20  # in the maps of a batch, above which they count as large


def mix_values(attention: Tensor, values: Tensor) -> Tensor:
    """attention [B or 1, h, T, K] times values [B, h, K, d_h] -> [B, T, d]; a shared map becomes h large products."""
    batch, heads, keys, width = values.shape
    if attention.shape[0] == batch:
        # maps lie in memory by heads
        return (attention.transpose(0, 1) @ values.transpose(0, 1)).permute(1, 2, 0, 3).flatten(2)
    columns = values.permute(1, 2, 0, 3).reshape(heads, keys, batch * width)
    mixed = attention[0] @ columns  # [h, T, B * d_h]
    return mixed.unflatten(-1, (batch, width)).permute(2, 1, 0, 3).flatten(2)


class Window(nn.Module):
    """Base of the synthetic logits: cuts maps of the full size to the queries and keys of one forward pass."""

    def __init__(self, config: ModelSettings, heads: int):
        super().__init__()
        self.heads, self.max_len, self.memory_len = heads, config.max_len, config.memory_len

    def rows(self, x: Tensor, seen: Past | None) -> slice:
        """The rows of the T queries: the last of the segment's positions read so far."""
        end = x.shape[1] if seen is None else seen.values.shape[2] - seen.filled
        return slice(end - x.shape[1], end)

    def columns(self, x: Tensor, seen: Past | None) -> slice:
        """The columns of the K keys at hand: the last M' of the memory, then those of the segment."""
        filled = 0 if seen is None else seen.filled
        return slice(self.memory_len - filled, self.memory_len + self.rows(x, seen).stop)

    def keys(self, x: Tensor) -> None:
        """None: synthetic logits need no keys."""

    def project_encodings(self, relative: Relative | None) -> None:
        """None: nor distances."""


class RandomLogits(Window):
    """S = R, R [h, L, M + L] trained (section 3.2: Random Synthesizer)."""

    no_decay = ("map",)  # decay would pull the map to uniform attention
    # Adam moves a number by about its rate a step: logits of their own need more than a matrix
    rate_scale: ClassVar[dict[str, float]] = {"map": 10.0}

    def __init__(self, config: ModelSettings, heads: int):
        super().__init__(config, heads)
        self.map = nn.Parameter(torch.randn(heads, self.max_len, self.memory_len + self.max_len) * 0.02)

    def forward(self, x: Tensor, seen: Past | None = None, added: Tensor | None = None) -> Tensor:
        """x [B, T, d] -> [1, h, T, K]. A copy: torch's FLOP counter fails on a module that gives a view of its
        parameter."""
        logits = self.map[None, :, self.rows(x, seen), self.columns(x, seen)]
        return logits.clone() if added is None else logits + added


class FixedRandomLogits(Window):
    """S = R, R [h, L, M + L] standard normal, never trained: a buffer, drawn from (seed, layer, head) alone.

    Standard deviation 1 leaves some 40 % of the keys effective; a small one would be plain averaging, for ever.
    """

    def __init__(self, config: ModelSettings, heads: int, seed: int, layer: int):
        super().__init__(config, heads)
        shape = (self.max_len, self.memory_len + self.max_len)
        generators = [_generator(seed, layer, head) for head in range(heads)]
        maps = [torch.randn(shape, generator=g, dtype=torch.float32, device="cpu") for g in generators]
        self.register_buffer("map", torch.stack(maps).to(torch.get_default_device(), torch.get_default_dtype()))

    def forward(self, x: Tensor, seen: Past | None = None, added: Tensor | None = None) -> Tensor:
        """x [B, T, d] -> [1, h, T, K]."""
        logits = self.map[None, :, self.rows(x, seen), self.columns(x, seen)].to(x.dtype)
        return logits if added is None else logits + added


class FactorizedRandomLogits(Window):
    """S = R1 R2^T, R1 [h, L, k], R2 [h, M + L, k] (section 3.4), with a logit variance of 1 at first, whatever the rank
    k."""

    no_decay = ("left", "right")

    def __init__(self, config: ModelSettings, heads: int, rank: int):
        super().__init__(config, heads)
        scale = rank**-0.25  # k products of two factors: variance k * scale^4 = 1
        self.left = nn.Parameter(torch.randn(heads, self.max_len, rank) * scale)
        self.right = nn.Parameter(torch.randn(heads, self.memory_len + self.max_len, rank) * scale)

    def forward(self, x: Tensor, seen: Past | None = None, added: Tensor | None = None) -> Tensor:
        """x [B, T, d] -> [1, h, T, K]."""
        left, right = self.left[:, self.rows(x, seen)], self.right[:, self.columns(x, seen)]
        return plus(left @ right.transpose(-1, -2), added)[None]


class DenseLogits(Window):
    """S_i = W2 relu(W1 X_i + b1) + b2 (section 3.1): W1 d x d_hidden, split in heads; W2 d_hidden/h x (M + L) a
    head."""

    no_decay = ("bias",)

    def __init__(self, config: ModelSettings, heads: int, d_hidden: int):
        super().__init__(config, heads)
        width = d_hidden // heads
        self.hidden = nn.Linear(config.d_model, d_hidden)
        self.weight = nn.Parameter(_uniform(heads, width, self.memory_len + self.max_len, fan_in=width))
        self.bias = nn.Parameter(torch.zeros(heads, 1, self.memory_len + self.max_len))

    def maps(self, x: Tensor, seen: Past | None, added: Tensor | None) -> Maps:
        """The logits of x [B, T, d] and their parts."""
        columns = self.columns(x, seen)
        bias = self.bias[:, None, :, columns]
        parts = relu_heads(self.hidden(x), self.heads), self.weight[:, :, columns]
        return Maps(Product(), parts, bias if added is None else bias + added)

    def forward(self, x: Tensor, seen: Past | None = None, added: Tensor | None = None) -> Tensor:
        """x [B, T, d] -> [B, h, T, K]."""
        return self.maps(x, seen, added).logits()

    def products(self, x: Tensor, seen: Past | None, width: int) -> tuple[Tensor, Tensor]:
        """Queries [B, h, T, w] and keys [B, h, K, w] whose products are the logits: b2 stands beside W2 and meets a 1.

        w is at least `width`; what is more than the logits need is 0.
        """
        columns = self.columns(x, seen)
        hidden = relu_heads(self.hidden(x), self.heads).transpose(0, 1)
        # [h, K, d_hidden / h + 1]
        keys = torch.cat((self.weight, self.bias), dim=1)[:, :, columns].transpose(1, 2).contiguous()
        spare = max(0, width - keys.shape[-1])
        query = functional.pad(functional.pad(hidden, (0, 1), value=1.0), (0, spare))
        return query, functional.pad(keys, (0, spare)).expand(len(x), -1, -1, -1)


class FactorizedDenseLogits(Window):
    """S_ij = A_i[j div b] * B_i[j mod b], A and B linear in relu(W1 X_i + b1) (section 3.3: one factor tiled, one
    repeated).

    a * b = L; with memory A has ceil(M / b) more entries. The division is by the columns of the whole map, never by T.
    """

    no_decay = ("bias",)

    def __init__(self, config: ModelSettings, heads: int, a: int, b: int):
        super().__init__(config, heads)
        width = config.d_model // heads
        self.lengths = factor_lengths(config, {"a": a, "b": b})
        self.hidden = nn.Linear(config.d_model, config.d_model)
        self.weight = nn.Parameter(_uniform(heads, width, sum(self.lengths), fan_in=width))
        self.bias = nn.Parameter(torch.zeros(heads, 1, sum(self.lengths)))

    def maps(self, x: Tensor, seen: Past | None, added: Tensor | None) -> Maps:
        """The logits of x [B, T, d] and their parts."""
        hidden = relu_heads(self.hidden(x), self.heads)  # [h, B, T, d / h]
        factors = torch.baddbmm(self.bias, hidden.flatten(1, 2), self.weight).view(*hidden.shape[:3], sum(self.lengths))
        return Maps(Outer(self.columns(x, seen)), factors.split(self.lengths, dim=-1), added)

    def forward(self, x: Tensor, seen: Past | None = None, added: Tensor | None = None) -> Tensor:
        """x [B, T, d] -> [B, h, T, K]."""
        return self.maps(x, seen, added).logits()


class MixtureLogits(nn.Module):
    """S = sum_n w_n S_n, w = softmax of one trained number a part and head, mixed before the attention's softmax
    (3.5)."""

    no_decay = ("mixing",)

    def __init__(
        self, config: ModelSettings, heads: int, parts: tuple[str, ...], d_hidden: int, rank: int, a: int, b: int
    ):
        super().__init__()
        makers = {
            "self_attention": lambda: DotProductLogits(config, heads),
            "dense": lambda: DenseLogits(config, heads, d_hidden),
            "random": lambda: RandomLogits(config, heads),
            "factorized_dense": lambda: FactorizedDenseLogits(config, heads, a, b),
            "factorized_random": lambda: FactorizedRandomLogits(config, heads, rank),
        }
        self.heads = heads
        self.mixing = nn.Parameter(torch.zeros(len(parts), heads))
        self.parts = nn.ModuleDict({part: makers[part]() for part in parts})

    def keys(self, x: Tensor) -> Tensor | None:
        """Those of the part self_attention, [B, h, T, d_h]; None without it."""
        return self.parts["self_attention"].keys(x) if "self_attention" in self.parts else None

    def project_encodings(self, relative: Relative | None) -> Relative | None:
        """The same for the relative positions."""
        return self.parts["self_attention"].project_encodings(relative) if "self_attention" in self.parts else None

    def forward(self, x: Tensor, seen: Past | None = None, added: Tensor | None = None) -> Tensor:
        """x [B, T, d] -> [B or 1, h, T, K]."""
        weights = torch.softmax(self.mixing, dim=0)[:, None, :, None, None]  # [parts, 1, h, 1, 1]
        logits = sum(weight * part(x, seen) for weight, part in zip(weights, self.parts.values(), strict=True))
        return plus(logits, added)


class Synthesizer(Attending):
    """Y = softmax(S(X)) V W_O for logits S of any kind. x [B, T, d] -> [B, T, d].

    Where every row of the batch has maps of its own, large ones are not kept for the backward pass but made again, as
    the fused kernel does; and a CPU makes so many at a time as fit its cache, without the memory that all of them would
    take on the way.
    """

    own_maps = False

    def attention(self, x: Tensor, seen: Past | None = None, *, mask: Tensor | None = None) -> Tensor:
        """The attention map softmax(S(X)) over the allowed keys, [B or 1, h, T, K]; without `seen` x is all there
        is."""
        if mask is not None:
            logits = self.logits(x, seen)
            return masked_softmax(logits, allowed_keys(x, logits.shape[-1], causal=self.causal, mask=mask))
        # as they lie in memory
        by_head = full_precision(self.logits(x, seen, self._causal_bias(x, seen))).transpose(0, 1)
        return torch.softmax(by_head, dim=-1).to(x.dtype).transpose(0, 1)

    def mix(self, x: Tensor, seen: Past, mask: Tensor | None) -> Tensor:
        """`mask` [B, T] bool, True = real token."""
        rows = max(1, MAP_NUMBERS // (self.heads * x.shape[1] * seen.values.shape[2]))
        if not self.own_maps or rows >= len(x):
            return self._mixed(x, seen, mask)
        rows = rows if x.device.type == "cpu" else len(x)
        parts = (None if one is None else one.split(rows) for one in (x, seen.values, seen.keys, mask))
        pieces = math.ceil(len(x) / rows)
        xs, values, keys, masks = (part or itertools.repeat(None, pieces) for part in parts)
        pasts = (seen._replace(values=own, keys=key) for own, key in zip(values, keys, strict=True))
        run = partial(checkpoint, self._mixed, use_reentrant=False) if torch.is_grad_enabled() else self._mixed
        return torch.cat([run(part, past, real) for part, past, real in zip(xs, pasts, masks, strict=True)])

    def _mixed(self, x: Tensor, seen: Past, mask: Tensor | None) -> Tensor:
        exact = type(self.logits) in (DenseLogits, FactorizedDenseLogits) and not is_hooked(self.logits)
        if mask is None and exact and in_one_node(x):
            return self.logits.maps(x, seen, self._causal_bias(x, seen)).mix(seen.values)
        return mix_values(self.attention(x, seen, mask=mask), seen.values)

    def _causal_bias(self, x: Tensor, seen: Past | None) -> Tensor | None:
        """The causal mask to be added to the logits, [T, K]."""
        return query_bias(x, x.shape[1] if seen is None else seen.values.shape[2]) if self.causal else None


class DenseSynthesizer(Synthesizer):
    """Synthesizer with DenseLogits; over many keys in torch's fused kernel, which holds no map [B, h, T, K]."""

    # keys; with fewer the map costs no more than the kernel's column for b2, with 256 it costs 2.3 times as much
    FUSED_FROM = 128

    def __init__(self, config: ModelSettings, *, heads: int, d_hidden: int):
        super().__init__(config, DenseLogits(config, heads, d_hidden))

    def mix(self, x: Tensor, seen: Past, mask: Tensor | None) -> Tensor:
        """`mask` [B, T] bool, True = real token."""
        if seen.values.shape[2] < self.FUSED_FROM or x.shape[1] == 1:  # one query's map is small
            return super().mix(x, seen, mask)
        width = seen.values.shape[-1]
        query, keys = self.logits.products(x, seen, width)
        values = functional.pad(seen.values, (0, keys.shape[-1] - width))  # the kernel wants one width
        mixed = attend(x, query, keys, values, causal=self.causal, mask=mask, scale=1.0)
        return mixed.unflatten(-1, (self.heads, -1))[..., :width].flatten(2)


class RandomSynthesizer(Synthesizer):
    """Synthesizer with RandomLogits."""

    def __init__(self, config: ModelSettings, *, heads: int):
        super().__init__(config, RandomLogits(config, heads))


class FixedRandomSynthesizer(Synthesizer):
    """Synthesizer with FixedRandomLogits; every layer has maps of its own."""

    needs_layer = True

    def __init__(self, config: ModelSettings, *, heads: int, seed: int, layer: int):
        super().__init__(config, FixedRandomLogits(config, heads, seed, layer))


class FactorizedDenseSynthesizer(Synthesizer):
    """Synthesizer with FactorizedDenseLogits."""

    own_maps = True

    def __init__(self, config: ModelSettings, *, heads: int, a: int, b: int):
        super().__init__(config, FactorizedDenseLogits(config, heads, a, b))


class FactorizedRandomSynthesizer(Synthesizer):
    """Synthesizer with FactorizedRandomLogits."""

    def __init__(self, config: ModelSettings, *, heads: int, rank: int):
        super().__init__(config, FactorizedRandomLogits(config, heads, rank))


class MixtureSynthesizer(Synthesizer):
    """Synthesizer with MixtureLogits."""

    own_maps = True

    def __init__(
        self, config: ModelSettings, *, heads: int, parts: tuple[str, ...], d_hidden: int, rank: int, a: int, b: int
    ):
        super().__init__(config, MixtureLogits(config, heads, parts, d_hidden, rank, a, b))


def _uniform(*shape: int, fan_in: int) -> Tensor:
    """nn.Linear's own initial law for a stack of weights."""
    return (torch.rand(shape) * 2 - 1) * fan_in**-0.5


def _generator(seed: int, layer: int, head: int) -> torch.Generator:
    return torch.Generator(device="cpu").manual_seed(((seed * 100_003 + layer) * 100_003 + head) % 2**63)
