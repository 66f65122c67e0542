"""Candidates of the attention kind that share norm, values and output projection, as one supernet layer may have them.

Gates then mix attention maps before the output projection: sum_i g_i (softmax(S_i) V W_O) = (sum_i g_i softmax(S_i) V)
W_O, so V and W_O are computed once. Head counts may differ. Shapes: B batch, T segment, K keys, d width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from supernet.attention import Attending, Past, split_heads, with_memory
from supernet.context import Context


def tie_values(layers: Sequence[nn.Module]) -> list[int]:
    """Give the attending layers the norm, the values and the output projection of the first of them; returns their
    positions."""
    attending = [index for index, layer in enumerate(layers) if isinstance(getattr(layer, "block", None), Attending)]
    for index in attending[1:]:
        first, other = layers[attending[0]], layers[index]
        other.norm, other.block.value, other.block.output = first.norm, first.block.value, first.block.output
    return attending


def attend_together(layers: Sequence[nn.Module], x: Tensor, gates: Tensor, context: Context) -> Tensor:
    """sum_i g_i F_i(x) over pre-norm layers with tied values, [B, T, d]; gates [n]. Dropout falls on the sum, not on
    each term."""
    first, memory = layers[0], context.memory
    seen = first.norm(with_memory(x, memory))
    inputs, values = seen[:, -x.shape[1] :], first.block.value(seen)
    filled = 0 if memory is None else memory.shape[1]
    mixed = torch.zeros_like(x)
    for gate, layer in zip(gates, layers, strict=True):
        block = layer.block
        past = Past(
            split_heads(values, block.heads),
            block.logits.keys(seen),
            block.logits.project_encodings(context.relative),
            filled,
        )
        mixed = mixed + gate * block.mix(inputs, past, context.mask)
    return gates.sum() * x + first.dropout(first.block.output(mixed))
