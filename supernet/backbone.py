"""What stands around the layers: embedding, positions, memory, final norm, head.

Shapes: B batch, T length of the segment, N layers, M memory, M' <= M its filled part, d width, V vocabulary.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from supernet.attention import Relative
from supernet.context import Context
from supernet.settings import ModelSettings


class Backbone(nn.Module):
    """A stack of layers between an embedding and a head. Subclasses call `run`."""

    def __init__(self, settings: ModelSettings, layers: list[nn.Module]):
        super().__init__()
        self.settings = settings
        self.memory_len, self.clamp_len = settings.memory_len, None
        self.recompute = (
            False  # layers in the backward pass, rather than keep what they computed: less memory, a third more work
        )
        self.embedding = nn.Embedding(settings.vocab_size, settings.d_model)
        # logits of a tied head start near unit scale
        nn.init.normal_(self.embedding.weight, std=settings.d_model**-0.5)
        self.positions = self.relative_biases = None
        if settings.position == "learned":
            self.positions = nn.Parameter(_first_positions(settings.max_len, settings.d_model))
        if settings.position == "relative" and settings.share_biases:
            self.relative_biases = nn.Parameter(torch.zeros(2, settings.d_model))  # u and v, shared by all layers
        self.dropout = nn.Dropout(settings.dropout)
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(settings.d_model) if settings.norm == "pre" else nn.Identity()
        self.head = AdaptiveHead(settings) if settings.cutoffs else Head(settings)

    def set_span(self, memory_len: int, clamp_len: int | None) -> None:
        """Remember so many positions from now on, and count distances above clamp_len as that (Dai et al. 2019, for
        evaluation).

        ValueError where a block's maps hold fewer columns of memory, or where the model was made without memory.
        """
        sized = any(module is not self and hasattr(module, "memory_len") for module in self.modules())
        if memory_len != self.settings.memory_len and (sized or not self.settings.memory_len):
            why = "synthesizers' maps are made for that many" if sized else "the model takes none"
            raise ValueError(f"memory_len must stay {self.settings.memory_len}, got {memory_len}: {why}")
        self.memory_len, self.clamp_len = memory_len, clamp_len

    def run(
        self,
        tokens: Tensor,
        extras: Sequence[tuple],
        *,
        memory: Tensor | None = None,
        padding_mask: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Logits [B, T, V] for tokens [B, T]; with memory_len > 0 also the next memory [N, B, M', d], detached.

        `extras[n]` are further arguments of layer n; `padding_mask` [B, T] bool, True = real token. Raises ValueError
        for T > max_len, and for a memory or a mask that does not fit.
        """
        self._check(tokens, memory, padding_mask)
        x = self.dropout(self.embed(tokens))
        x, inputs = self.run_layers(x, self.layers, memory, padding_mask, extras)
        logits = self.read_out(x)
        return (logits, self.next_memory(memory, inputs)) if self.settings.memory_len else logits

    def run_layers(
        self,
        x: Tensor,
        layers: Sequence[nn.Module],
        memory: Tensor | None,
        padding_mask: Tensor | None = None,
        extras: Sequence[tuple] | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """x [B, T, d] through some of the layers with their memory [n, B, M', d]: the last one's output, and every
        one's input.

        The inputs are kept only in a model with memory, which is made of them.
        """
        filled = 0 if memory is None else memory.shape[2]
        relative = self.relative(filled + x.shape[1], x)
        inputs = []
        for index, layer in enumerate(layers):
            if self.settings.memory_len:
                inputs.append(x)
            past = None if memory is None else memory[index]
            context, arguments = Context(padding_mask, past, relative, self.recompute), extras[index] if extras else ()
            x = layer(x, context, *arguments) if arguments else context.run(layer, x)
        return x, inputs

    def read_out(self, x: Tensor) -> Tensor:
        """Logits [B, T, V] of the last layer's output [B, T, d]."""
        return self.head(self.norm(x), self.embedding.weight)

    def _check(self, tokens: Tensor, memory: Tensor | None, padding_mask: Tensor | None) -> None:
        if tokens.ndim != 2:
            raise ValueError(f"tokens must be [B, T], got shape {tuple(tokens.shape)}")
        if tokens.shape[1] > self.settings.max_len:
            raise ValueError(f"length {tokens.shape[1]} exceeds max_len {self.settings.max_len}")
        if padding_mask is not None and (padding_mask.shape != tokens.shape or padding_mask.dtype != torch.bool):
            given = f"{padding_mask.dtype} {tuple(padding_mask.shape)}"
            raise ValueError(f"padding_mask must be torch.bool {tuple(tokens.shape)}, True = real token, got {given}")
        if memory is not None:
            self._check_memory(memory, len(tokens))

    def _check_memory(self, memory: Tensor, batch: int) -> None:
        longest, width = self.memory_len, self.settings.d_model
        if not self.settings.memory_len:
            raise ValueError("this model has memory_len 0, so it takes no memory")
        fits = memory.ndim == 4 and memory.shape[2] <= longest
        if not fits or (*memory.shape[:2], memory.shape[3]) != (len(self.layers), batch, width):
            wanted = f"[{len(self.layers)} layers, {batch} rows, up to memory_len {longest}, {width}]"
            raise ValueError(f"memory must be {wanted}, got shape {tuple(memory.shape)}")

    def embed(self, tokens: Tensor, first: int = 0) -> Tensor:
        """Tokens [B, T], of which the first stands at position `first`, -> [B, T, d]."""
        x = self.embedding(tokens)  # [B, T, d]
        last = first + tokens.shape[1]
        if self.positions is not None:
            return x + self.positions[first:last]
        if self.settings.position == "sinusoidal":
            return x + sinusoids(torch.arange(first, last, device=x.device), x.shape[-1]).to(x.dtype)
        return x

    def relative(self, keys: int, queries: Tensor) -> Relative | None:
        """Relative positions of so many keys for queries [B, T, d], the last of both at one place; None where positions
        are not."""
        if self.settings.position != "relative":
            return None
        # keys to the right of a query lie at negative distances
        nearest = 0 if self.settings.causal else min(0, 1 - queries.shape[1])
        distances = torch.arange(keys - 1, nearest - 1, -1, device=queries.device)
        if self.clamp_len is not None:
            distances = distances.clamp(max=self.clamp_len)
        u = v = None
        if self.relative_biases is not None:
            # no views of a parameter: torch's FLOP counter fails on modules given those
            u, v = self.relative_biases.clone()
        return Relative(sinusoids(distances, queries.shape[-1]).to(queries.dtype), u, v)

    def next_memory(self, memory: Tensor | None, inputs: list[Tensor]) -> Tensor:
        """The last positions of a memory [n, B, M', d] and of its layers' inputs [B, T, d], detached."""
        seen = torch.stack(inputs).detach()  # [n, B, T, d]
        if memory is not None:
            seen = torch.cat((memory, seen), dim=2)
        return seen[:, :, max(0, seen.shape[2] - self.memory_len) :]


class Head(nn.Module):
    """Logits = X E^T with E the embedding (tied) or a matrix of its own. [B, T, d] -> [B, T, V]."""

    def __init__(self, settings: ModelSettings):
        super().__init__()
        self.weight = None
        if not settings.tie_embeddings:
            self.weight = nn.Parameter(torch.randn(settings.vocab_size, settings.d_model) * settings.d_model**-0.5)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """`embedding` [V, d] is used where the head is tied."""
        return functional.linear(x, embedding if self.weight is None else self.weight)


class AdaptiveHead(nn.Module):
    """Adaptive softmax (Grave et al. 2017) with clusters of one width (div_val 1), as Transformer-XL Base uses it.

    The first cluster's words stand beside one entry a tail cluster; a tail word's probability is its cluster's times
    its own within the cluster. [B, T, d] -> log-probabilities [B, T, V], which serve as logits: their softmax is
    themselves.
    """

    def __init__(self, settings: ModelSettings):
        super().__init__()
        self.borders = [*settings.cutoffs, settings.vocab_size]
        self.words = Head(settings)
        self.bias = nn.Parameter(torch.zeros(settings.vocab_size))
        self.cluster_weight = nn.Parameter(torch.zeros(len(settings.cutoffs), settings.d_model))
        self.cluster_bias = nn.Parameter(torch.zeros(len(settings.cutoffs)))

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """`embedding` [V, d] is used where the head is tied."""
        scores = self.words(x, embedding) + self.bias
        first, *tails = scores.split([b - a for a, b in itertools.pairwise([0, *self.borders])], dim=-1)
        clusters = functional.linear(x, self.cluster_weight, self.cluster_bias)
        first = torch.log_softmax(torch.cat((first, clusters), dim=-1), dim=-1)
        words, clusters = first.split((self.borders[0], len(tails)), dim=-1)
        parts = [torch.log_softmax(tail, dim=-1) + clusters[..., i : i + 1] for i, tail in enumerate(tails)]
        return torch.cat((words, *parts), dim=-1)


def _first_positions(length: int, width: int) -> Tensor:
    """[L, d]: what learned positions start from: sinusoids of the embedding's scale, wavelengths from 2 pi to 2 pi L.

    A shift is then linear, so attention finds the previous token early; from random ones it takes twice the steps to
    leave a bigram model's loss, and in a supernet it did not within thousands (docs/log.md).
    """
    start = sinusoids(torch.arange(length), width, base=max(length, 2)) * (2 / width) ** 0.5
    return start.to(torch.get_default_dtype())


def sinusoids(positions: Tensor, width: int, base: float = 10_000) -> Tensor:
    """[K] -> [K, width]: sines, then cosines (Vaswani et al. 2017, section 3.5, in Transformer-XL's order)."""
    frequencies = base ** (-torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width)
    angles = positions.float()[:, None] * frequencies
    return torch.cat((angles.sin(), angles.cos()), dim=-1)[:, :width]


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """AdamW's groups: decay for matrices, none for vectors, embeddings and what a module lists in `no_decay`.

    What a module lists in `rate_scale` has a learning rate of so many times the others' (`lr_scale` of its group).
    """
    exempt, scales = set(), {}
    for module in model.modules():
        names = ("weight",) if isinstance(module, nn.Embedding) else getattr(module, "no_decay", ())
        exempt.update(id(getattr(module, name)) for name in names)
        scales.update({id(getattr(module, name)): scale for name, scale in getattr(module, "rate_scale", {}).items()})
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if name != "alphas":
            plain = parameter.ndim < 2 or id(parameter) in exempt or name in ("positions", "relative_biases")
            groups.setdefault((plain, scales.get(id(parameter), 1.0)), []).append(parameter)
    return [
        {"params": members, "weight_decay": 0.0 if plain else weight_decay, "lr_scale": scale}
        for (plain, scale), members in sorted(groups.items(), key=lambda item: item[0])
    ]
