"""The blocks that look at one position alone."""

import pytest
import torch
from by_hand import block_of, hand_feed_forward, random_input, small

from supernet.feed_forward import Identity


@pytest.mark.parametrize("label", ["feed_forward", "feed_forward[d_inner=29]"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_formula(label: str, dropout: float) -> None:
    block = block_of(label, small(dropout=dropout)).eval()
    x = random_input(3, 13, 10)
    torch.testing.assert_close(block(x), hand_feed_forward(block, x), rtol=1e-12, atol=1e-12)


def test_d_inner_is_the_hidden_width() -> None:
    assert block_of("feed_forward", small()).inner.weight.shape == (17, 10)
    assert block_of("feed_forward[d_inner=29]", small()).inner.weight.shape == (29, 10)


def test_the_mask_changes_nothing() -> None:
    block = block_of("feed_forward", small())
    x, mask = random_input(3, 13, 10), torch.zeros(3, 13, dtype=torch.bool)
    assert torch.equal(block(x), block(x, mask=mask))


def test_dropout_acts_on_the_hidden_units_in_training_only() -> None:
    """With W2 = 1 and one hidden unit alive a token, a dropped unit gives 0 and a kept one 1 / (1 - p)."""
    block = block_of("feed_forward[d_inner=10]", small(dropout=0.25)).train()
    with torch.no_grad():
        block.inner.weight.copy_(torch.eye(10))
        block.outer.weight.fill_(1.0)
        block.inner.bias.zero_()
        block.outer.bias.zero_()
    x = torch.zeros(400, 10, 10, dtype=torch.float64)
    x[:, torch.arange(10), torch.arange(10)] = 1.0
    torch.manual_seed(0)
    y = block(x)
    torch.testing.assert_close(torch.unique(y), torch.tensor([0.0, 1 / 0.75], dtype=torch.float64))
    assert (y == 0).double().mean().item() == pytest.approx(0.25, abs=0.02)
    assert torch.equal(block.eval()(x), torch.ones_like(x))


def test_identity_is_its_input() -> None:
    x = random_input(3, 13, 10)
    assert Identity()(x) is x
    assert Identity()(x, mask=torch.zeros(3, 13, dtype=torch.bool)) is x
