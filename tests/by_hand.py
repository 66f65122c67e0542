"""Independent references: every formula again, in plain loops over rows b, heads h, queries i and keys j, in fp64.

Sizes are different primes (or products of them), so that a swapped axis cannot pass: d = 2 * 5, L = 3 * 7, V = 23,
inner 17.
"""

import math

import torch
from torch import Tensor, nn

from supernet.blocks import parse_candidate
from supernet.layers import IdentityLayer, build_block
from supernet.settings import ModelSettings

SIZES = {"vocab_size": 23, "d_model": 10, "heads": 2, "d_inner": 17, "max_len": 21}
WIDTH, HEADS, LENGTH = 10, 2, 21


def small(**changes: object) -> ModelSettings:
    """The small settings, with changes."""
    return ModelSettings(**{**SIZES, **changes})


def block_of(label: str, settings: ModelSettings, *, seed: int = 0, layer: int = 0) -> nn.Module:
    """The bare block in fp64, away from its initial values (zeros and ones would hide mistakes)."""
    torch.manual_seed(seed)
    return shaken(build_block(parse_candidate(label, settings), settings, layer).double())


def shaken(module: nn.Module) -> nn.Module:
    """The module with noise on every parameter."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return module


def random_input(*shape: int, seed: int = 1) -> Tensor:
    """Standard normal numbers in fp64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_tokens(batch: int, length: int, *, seed: int = 1, vocab: int = 23) -> Tensor:
    """Tokens [B, T]."""
    return torch.randint(vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def hand_attention(
    block: nn.Module,
    x: Tensor,
    *,
    causal: bool,
    mask: Tensor | None = None,
    memory: Tensor | None = None,
    biases: Tensor | None = None,
) -> Tensor:
    """Y = softmax(S) V W_O, one query at a time; `biases` are u and v of relative positions, [2, d]."""
    seen = x if memory is None else torch.cat((memory, x), dim=1)
    filled = seen.shape[1] - x.shape[1]
    scores = hand_logits(block.logits, x, seen, biases)
    values = seen @ block.value.weight.T
    heads = scores.shape[1]
    width = x.shape[2] // heads
    rows = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for h in range(heads):
            for i in range(x.shape[1]):
                keys = [j for j in range(seen.shape[1]) if _may_see(i, j, b, filled, causal, mask)]
                if not keys:
                    continue
                weights = [math.exp(scores[b, h, i, j]) for j in keys]
                for weight, j in zip(weights, keys, strict=True):
                    part = slice(h * width, (h + 1) * width)
                    rows[b, i, part] += weight / sum(weights) * values[b, j, part]
    return rows @ block.output.weight.T


def _may_see(i: int, j: int, b: int, filled: int, causal: bool, mask: Tensor | None) -> bool:
    if causal and j > i + filled:
        return False
    return j < filled or mask is None or bool(mask[b, j - filled])


@torch.no_grad()
def hand_logits(logits: nn.Module, x: Tensor, seen: Tensor, biases: Tensor | None = None) -> Tensor:
    """S [B, h, T, K], entry by entry, of any kind of logits; `seen` [B, K, d] are the keys' inputs, memory first."""
    kind = type(logits).__name__
    if kind == "MixtureLogits":
        return _mixture(logits, x, seen, biases)
    entry = {
        "DotProductLogits": _dot_product,
        "RandomLogits": _random,
        "FixedRandomLogits": _random,
        "DenseLogits": _dense,
        "FactorizedRandomLogits": _factorized_random,
        "FactorizedDenseLogits": _factorized_dense,
    }[kind]
    scores = torch.zeros(x.shape[0], logits.heads, x.shape[1], seen.shape[1], dtype=x.dtype)
    for b in range(scores.shape[0]):
        for h in range(scores.shape[1]):
            for i in range(scores.shape[2]):
                scores[b, h, i] = torch.tensor(entry(logits, x[b], seen[b], h, i, biases), dtype=x.dtype)
    return scores


def _columns(logits: nn.Module, x: Tensor, seen: Tensor) -> list[int]:
    """The map's column of each key: the segment's first key stands at column memory_len."""
    filled = len(seen) - len(x)
    return [logits.memory_len - filled + j for j in range(len(seen))]


def _dot_product(logits: nn.Module, x: Tensor, seen: Tensor, h: int, i: int, biases: Tensor | None) -> list[float]:
    width = x.shape[1] // logits.heads
    part = slice(h * width, (h + 1) * width)
    query = (logits.query.weight @ x[i])[part]
    keys = (seen @ logits.key.weight.T)[:, part]
    u, v = (torch.zeros(2, width, dtype=x.dtype)) if biases is None else biases[:, part]
    row = []
    for j in range(len(seen)):
        score = (query + u) @ keys[j]
        if biases is not None:
            distance = len(seen) - len(x) + i - j
            score = score + (query + v) @ (logits.position.weight @ encoding(distance, x.shape[1]))[part]
        row.append(float(score) / math.sqrt(width))
    return row


def encoding(distance: float, width: int) -> Tensor:
    """sin(distance / 10000^(2k / d)) for k < d / 2, then the cosines."""
    angles = [distance / 10_000 ** (2 * k / width) for k in range(width // 2)]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64)


def _random(logits: nn.Module, x: Tensor, seen: Tensor, h: int, i: int, _: Tensor | None) -> list[float]:
    return [float(logits.map[h, i, column]) for column in _columns(logits, x, seen)]


def _factorized_random(logits: nn.Module, x: Tensor, seen: Tensor, h: int, i: int, _: Tensor | None) -> list[float]:
    rank = logits.left.shape[2]
    left, right = logits.left.tolist(), logits.right.tolist()
    return [sum(left[h][i][k] * right[h][c][k] for k in range(rank)) for c in _columns(logits, x, seen)]


def _hidden(logits: nn.Module, row: Tensor, h: int) -> Tensor:
    hidden = torch.clamp(logits.hidden.weight @ row + logits.hidden.bias, min=0)
    width = len(hidden) // logits.heads
    return hidden[h * width : (h + 1) * width]


def _dense(logits: nn.Module, x: Tensor, seen: Tensor, h: int, i: int, _: Tensor | None) -> list[float]:
    hidden = _hidden(logits, x[i], h)
    return [float(hidden @ logits.weight[h, :, c] + logits.bias[h, 0, c]) for c in _columns(logits, x, seen)]


def _factorized_dense(logits: nn.Module, x: Tensor, seen: Tensor, h: int, i: int, _: Tensor | None) -> list[float]:
    hidden = _hidden(logits, x[i], h)
    entries = (hidden @ logits.weight[h] + logits.bias[h, 0]).tolist()
    b = logits.lengths[1]
    repeated, tiled = entries[:-b], entries[-b:]
    return [repeated[c // b] * tiled[c % b] for c in _columns(logits, x, seen)]


def _mixture(logits: nn.Module, x: Tensor, seen: Tensor, biases: Tensor | None) -> Tensor:
    parts = [hand_logits(part, x, seen, biases) for part in logits.parts.values()]
    total = torch.zeros_like(parts[0])
    for h in range(total.shape[1]):
        raw = [math.exp(logits.mixing[n, h]) for n in range(len(parts))]
        for weight, part in zip(raw, parts, strict=True):
            total[:, h] += weight / sum(raw) * part[:, h]
    return total


def hand_norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * gain + bias over the last axis."""
    mean = x.mean(dim=-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(dim=-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + norm.eps) * norm.weight + norm.bias


def hand_feed_forward(block: nn.Module, x: Tensor) -> Tensor:
    """W2 relu(W1 x + b1) + b2."""
    inner = x @ block.inner.weight.T + block.inner.bias
    return torch.where(inner > 0, inner, 0.0) @ block.outer.weight.T + block.outer.bias


@torch.no_grad()
def hand_layer(layer: nn.Module, x: Tensor, settings: ModelSettings) -> Tensor:
    """A whole layer: norm and residual around the block's own reference."""
    if isinstance(layer, IdentityLayer):
        return x
    pre = settings.norm == "pre"
    normalised = hand_norm(layer.norm, x) if pre else x
    if hasattr(layer.block, "logits"):
        y = x + hand_attention(layer.block, normalised, causal=settings.causal)
    else:
        y = x + hand_feed_forward(layer.block, normalised)
    return y if pre else hand_norm(layer.norm, y)
