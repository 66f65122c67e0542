"""A network made for inference only: no gradients, and nothing computed again that does not depend on the input.

Shapes: B batch, T positions at hand, K keys, h heads, L max_len, d width.
"""

from typing import Any

import torch
from torch import Tensor, nn

from supernet.attention import Past
from supernet.layers import IdentityLayer, Layer, build_layer
from supernet.network import Network
from supernet.settings import ModelSettings
from supernet.synthesizers import (
    FactorizedRandomSynthesizer,
    FixedRandomSynthesizer,
    RandomSynthesizer,
    Synthesizer,
    Window,
)

RANDOM_KINDS = (RandomSynthesizer, FixedRandomSynthesizer, FactorizedRandomSynthesizer)


@torch.no_grad()
def for_inference(model: Network) -> Network:
    """A copy with equal outputs that shares no weights with the model: parameters without gradients, in eval mode.

    In a causal model without memory the random kinds hold their attention map softmax(S) [h, L, L] in place of its
    logits. With memory the logits stay, since rows of the map sum to 1 over as many columns as the memory has filled,
    and in a masked_lm, where it is the row's length. Identity layers are left out, except with memory, which has a
    place for every layer.

    The network is built again from its candidates and given the model's state, as `derive.build` does from a supernet:
    a deep copy would take along hooks, compiled code and whatever else refers to the model. What this function or
    torch.compile made of a network is taken too. Raises ValueError for a model that is not a Network of `derive.build`,
    or whose modules were changed since.
    """
    model = _unwrapped(model)
    if not isinstance(model, Network):
        raise ValueError(f"for_inference takes a network as derive.build makes it, got {type(model).__name__}")
    with torch.random.fork_rng(devices=[]):  # the initial weights are drawn for nothing
        twin = Network(model.settings, [_built_again(layer, model.settings) for layer in model.layers])
        _load(twin, model)
        if not model.settings.memory_len:
            twin.layers = nn.ModuleList(layer for layer in twin.layers if not isinstance(layer, IdentityLayer))
            _store_maps(twin)
    twin.memory_len, twin.clamp_len = model.memory_len, model.clamp_len
    return twin.requires_grad_(False).eval()


class StoredMap(Synthesizer):
    """A random kind whose causal map [h, L, L] is a buffer: its upper left corner is the map of any shorter row."""

    def __init__(self, settings: ModelSettings, block: Synthesizer):
        super().__init__(settings, Window(settings, block.heads))
        self.value, self.output = block.value, block.output
        whole = block.attention(block.value.weight.new_zeros(1, settings.max_len, settings.d_model))
        self.register_buffer("map", whole[0])

    def attention(self, x: Tensor, seen: Past | None = None, *, mask: Tensor | None = None) -> Tensor:
        """[1 or B, h, T, K]; with a mask [B, K] rows are divided by what real tokens have of them, 0 where that is
        nothing."""
        map = self.map[None, :, self.logits.rows(x, seen), self.logits.columns(x, seen)]
        if mask is None:
            return map
        real = map.to(torch.promote_types(map.dtype, torch.float32)) * mask[:, None, None, :]
        return (real / real.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(real.dtype).tiny)).to(map.dtype)


def _built_again(layer: nn.Module, settings: ModelSettings) -> nn.Module:
    layer = _unwrapped(layer)
    if isinstance(layer, IdentityLayer):
        return IdentityLayer()
    if not isinstance(layer, Layer):
        raise ValueError(f"for_inference takes layers as derive.build makes them, got {type(layer).__name__}")
    again = build_layer(layer.candidate, settings, layer.number)
    if type(_unwrapped(layer.block)) is StoredMap:  # the layer is of such a copy
        again.block = StoredMap(settings, again.block)
    return again


def _unwrapped(module: Any) -> Any:
    """The module itself where torch.compile has wrapped it."""
    return getattr(module, "_orig_mod", module)


def _load(twin: Network, model: Network) -> None:
    """Copies of every parameter and buffer, of their own types and devices."""
    state = {name.replace("_orig_mod.", ""): _copied(value) for name, value in model.state_dict().items()}
    try:
        twin.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise ValueError(
            f"for_inference: the model was changed since it was built: {' '.join(str(error).split())}"
        ) from None
    for name, buffer in model.named_buffers():
        owner, _, attribute = name.replace("_orig_mod.", "").rpartition(".")
        setattr(twin.get_submodule(owner), attribute, _copied(buffer))  # a user's block may keep some out of the state


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _store_maps(network: Network) -> None:
    for layer in network.layers:
        if network.settings.causal and type(layer.block) in RANDOM_KINDS:
            layer.block = StoredMap(network.settings, layer.block)
