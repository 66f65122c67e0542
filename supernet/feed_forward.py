"""The blocks that look at one position alone."""

from torch import Tensor, nn
from torch.nn import functional

from supernet.attention import output_projection
from supernet.settings import ModelSettings


class FeedForward(nn.Module):
    """Y = W2 relu(W1 X + b1) + b2 (Vaswani et al. 2017, eq. 2), with dropout on the hidden units. x [B, T, d] -> [B, T,
    d]."""

    def __init__(self, config: ModelSettings, *, d_inner: int):
        super().__init__()
        self.inner = nn.Linear(config.d_model, d_inner)
        self.dropout = nn.Dropout(config.dropout)
        self.outer = output_projection(d_inner, config.d_model, bias=True)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """`mask` is not needed: positions do not meet."""
        return self.outer(self.dropout(functional.relu(self.inner(x))))


class Identity(nn.Module):
    """The layer that is not there: its output is its input."""

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """x [B, T, d] -> x."""
        return x
