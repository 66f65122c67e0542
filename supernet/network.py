"""A plain network: what an architecture is built into."""

import torch
from torch import Tensor

from supernet.backbone import Backbone
from supernet.decoding import generate


class Network(Backbone):
    """A plain model: one block a layer. `model(tokens)` -> logits, with memory_len > 0 (logits, memory)."""

    def forward(
        self, tokens: Tensor, *, memory: Tensor | None = None, padding_mask: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """tokens [B, T] int64 -> logits [B, T, V]; see Backbone.run."""
        return self.run(tokens, [()] * len(self.layers), memory=memory, padding_mask=padding_mask)

    def generate(
        self,
        prompt: Tensor,
        count: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """prompt [B, T] int64 and `count` further tokens, [B, T + count]; see decoding.generate."""
        return generate(self, prompt, count, temperature=temperature, top_k=top_k, generator=generator)
