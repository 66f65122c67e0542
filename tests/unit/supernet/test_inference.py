"""The copy made for inference: equal outputs, nothing shared, stored maps, fewer layers."""

import pytest
import torch
from by_hand import small
from test_decoding import EVERY_BLOCK, KINDS, TEXT, assert_read_alike, network, whole
from test_user_blocks import registered
from torch import Tensor, nn

from supernet.attention import SelfAttention
from supernet.blocks import BLOCKS
from supernet.inference import StoredMap, for_inference
from supernet.network import Network
from supernet.settings import ModelSettings

MASKED = {"masked": {"task": "masked_lm"}, "masked relative": {"task": "masked_lm", "position": "relative"}}
ALL_KINDS = {**KINDS, **MASKED}


def outputs(model: Network, mask: Tensor | None = None) -> list[Tensor]:
    found, memory = [], None
    with torch.no_grad():
        for length in (1, 13, 21):
            options = {"memory": memory} if model.settings.memory_len else {}
            result = model(TEXT[:, :length], padding_mask=None if mask is None else mask[:, :length], **options)
            logits, memory = result if isinstance(result, tuple) else (result, None)
            found += [logits] if memory is None else [logits, memory]
    return found


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("block", [name for name in BLOCKS])
def test_outputs_are_equal(block: str, kind: str) -> None:
    model = network(f"i{BLOCKS[block].letter}f{BLOCKS[block].letter}", **ALL_KINDS[kind])
    slim = for_inference(model)
    for one, other in zip(outputs(slim), outputs(model), strict=True):
        torch.testing.assert_close(one, other)
    if model.settings.causal:
        assert_read_alike(slim, 5, TEXT[:, :44])
        torch.testing.assert_close(whole(slim, TEXT), whole(model, TEXT))


@pytest.mark.parametrize("kind", ["learned", "relative", "memory", "masked"])
def test_outputs_are_equal_with_padding(kind: str) -> None:
    model = network(EVERY_BLOCK, **ALL_KINDS[kind])
    mask = torch.ones(3, 21, dtype=torch.bool)
    mask[0, :4] = mask[1, 9:] = False
    mask[2] = False
    for one, other in zip(outputs(for_inference(model), mask), outputs(model, mask), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("letter", "rxq")
def test_random_kinds_hold_their_map_where_it_is_one(letter: str) -> None:
    slim = for_inference(network(f"{letter}i"))
    assert len(slim.layers) == 1
    names = {name for name, _ in slim.layers[0].block.named_parameters()}
    map = slim.layers[0].block.map
    assert isinstance(slim.layers[0].block, StoredMap) and names == {"value.weight", "output.weight"}
    assert map.shape == (2, 21, 21) and not map.triu(1).any()
    torch.testing.assert_close(map.sum(dim=-1), torch.ones(2, 21))
    for changes in (KINDS["memory"], MASKED["masked"]):
        assert not any(
            isinstance(module, StoredMap) for module in for_inference(network(f"{letter}i", **changes)).modules()
        )


def test_identity_layers_vanish_where_no_memory_counts_layers() -> None:
    assert len(for_inference(network("isii")).layers) == 1
    assert len(for_inference(network("isii", task="masked_lm")).layers) == 1
    slim = for_inference(network("isii", **KINDS["memory"]))
    assert len(slim.layers) == 4 and slim(TEXT[:, :5])[1].shape == (4, 3, 5, 10)


def test_the_copy_is_for_inference_and_shares_nothing() -> None:
    model = network(EVERY_BLOCK, dropout=0.3).train()
    state = torch.get_rng_state()
    slim = for_inference(model)
    assert torch.equal(torch.get_rng_state(), state) and all(module.training for module in model.modules())
    assert not any(module.training for module in slim.modules()) and not any(p.requires_grad for p in slim.parameters())
    assert all(p.requires_grad for p in model.parameters())
    tensors = [*model.parameters(), *model.buffers()]
    mine = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    assert mine.isdisjoint({tensor.untyped_storage().data_ptr() for tensor in (*slim.parameters(), *slim.buffers())})
    before = slim(TEXT[:, :9])
    with torch.no_grad():
        for tensor in tensors:
            tensor.add_(1)
    assert torch.equal(slim(TEXT[:, :9]), before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_types_are_kept(dtype: torch.dtype) -> None:
    model = network(EVERY_BLOCK).to(dtype)
    slim = for_inference(model)
    assert {tensor.dtype for tensor in (*slim.parameters(), *slim.buffers())} == {dtype}
    torch.testing.assert_close(slim(TEXT[:, :21]), model(TEXT[:, :21]))


def test_the_span_is_kept() -> None:
    model = network("sfs", position="relative", memory_len=11)
    model.set_span(17, 9)
    torch.testing.assert_close(whole(for_inference(model), TEXT), whole(model, TEXT))


@pytest.mark.parametrize("kind", ["learned", "memory", "masked"])
def test_a_copy_of_the_copy_is_equal_and_shares_nothing(kind: str) -> None:
    slim = for_inference(network(EVERY_BLOCK, **ALL_KINDS[kind]))
    again = for_inference(slim)
    assert [type(module) for module in again.modules()] == [type(module) for module in slim.modules()]
    assert all(torch.equal(one, other) for one, other in zip(outputs(again), outputs(slim), strict=True))
    mine = {tensor.untyped_storage().data_ptr() for tensor in (*slim.parameters(), *slim.buffers())}
    assert mine.isdisjoint({tensor.untyped_storage().data_ptr() for tensor in (*again.parameters(), *again.buffers())})
    assert not any(parameter.requires_grad for parameter in again.parameters())


def test_a_compiled_network_is_taken() -> None:
    model = network("srif")
    compiled = torch.compile(model, backend="eager")
    slim = for_inference(compiled)
    assert type(slim) is Network and torch.equal(slim(TEXT[:, :21]), for_inference(model)(TEXT[:, :21]))
    assert torch.equal(for_inference(torch.compile(slim, backend="eager"))(TEXT[:, :21]), slim(TEXT[:, :21]))


def test_compiled_layers_and_inference_mode_are_taken() -> None:
    model = network("srxf")
    expected = model(TEXT[:, :21])
    model.layers[0].compile(backend="eager")
    model.layers[1] = torch.compile(model.layers[1], backend="eager")
    slim = for_inference(model)
    torch.testing.assert_close(slim(TEXT[:, :21]), expected)
    with torch.inference_mode():
        torch.testing.assert_close(for_inference(model)(TEXT[:, :21]), expected)


class Stateful(nn.Module):
    """A user's block with a random buffer outside the state, and a function that refers to the module."""

    def __init__(self, config: ModelSettings):
        super().__init__()
        self.linear = nn.Linear(config.d_model, config.d_model)
        self.register_buffer("noise", torch.randn(config.d_model), persistent=False)
        self.apply_linear = lambda x: self.linear(x)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return self.apply_linear(x) + self.noise


def test_a_users_block_is_built_again_with_all_its_tensors() -> None:
    with registered(Stateful):
        model = network("ts")
        slim = for_inference(model)
        expected = model(TEXT[:, :9])
        assert torch.equal(slim(TEXT[:, :9]), expected)
        with torch.no_grad():
            model.layers[0].block.linear.weight.zero_()
        assert torch.equal(slim(TEXT[:, :9]), expected)


def test_what_is_no_network_of_build_is_refused() -> None:
    with pytest.raises(ValueError, match="takes a network as derive.build makes it, got Linear"):
        for_inference(nn.Linear(2, 3))
    model = network("sf")
    model.layers[1] = nn.Linear(10, 10)
    with pytest.raises(ValueError, match="layers as derive.build makes them, got Linear"):
        for_inference(model)
    model = network("sf")
    model.layers[0].block = SelfAttention(small(d_model=20), heads=2)
    with pytest.raises(ValueError, match="changed since it was built: .*size mismatch"):
        for_inference(model)
