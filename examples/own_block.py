"""A candidate of one's own in the search: python examples/own_block.py run --config configs/own_block.yaml"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it also runs from a clone that is not installed

from search import main
from supernet import register_block


@register_block("causal_convolution", letter="c", attention_like=True)
class CausalConvolution(nn.Module):
    """A depthwise convolution over the last `width` positions, then a projection. [B, T, d] -> [B, T, d]."""

    def __init__(self, config, *, width: int = 3):
        super().__init__()
        self.width = width
        self.filter = nn.Parameter(torch.randn(config.d_model, 1, width) * width**-0.5)
        self.output = nn.Linear(config.d_model, config.d_model)

    def forward(self, x, *, mask=None):
        """`mask` [B, T] bool, True = real token."""
        if mask is not None:
            x = x * mask[..., None]
        padded = functional.pad(x.transpose(1, 2), (self.width - 1, 0))
        mixed = functional.conv1d(padded, self.filter, groups=x.shape[-1])
        return self.output(functional.relu(mixed.transpose(1, 2)))

    @staticmethod
    def flops_per_token(config, seq_len: int) -> int:
        """Forward FLOPs a token, 2 a multiply-add."""
        return 2 * 3 * config.d_model + 2 * config.d_model**2


if __name__ == "__main__":
    main()
