"""From an architecture to a torch module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from supernet.errors import UserError
from supernet.layers import build_layer
from supernet.network import Network

if TYPE_CHECKING:
    from derive.architecture import Architecture
    from supernet.supernet import Supernet


def build(arch: Architecture, weights: Supernet | None = None) -> Network:
    """The architecture as a plain module: `model(tokens)` [B, T] int64 -> logits [B, T, V].

    `model(tokens, memory=memory)` -> (logits, memory) where the architecture has memory; `padding_mask` [B, T] bool,
    True = real token. With `weights`, a copy of the supernet's weights of the chosen candidates, in their type and on
    their device; UserError when the supernet has other settings or lacks one of the blocks. Every parameter exists
    after the call, and the module's own state has strict keys.
    """
    model = Network(arch.model, [build_layer(candidate, arch.model, n) for n, candidate in enumerate(arch.layers)])
    if weights is not None:
        state = _chosen_state(arch, weights)
        model.to(weights.embedding.weight)  # its device and type
        model.load_state_dict(state)
    return model


def _chosen_state(arch: Architecture, net: Supernet) -> dict[str, torch.Tensor]:
    if not hasattr(net, "candidates"):
        raise UserError(f"build: weights must be a Supernet, got {type(net).__name__}")
    if net.settings != arch.model:
        raise UserError("build: the supernet and the architecture have different model settings")
    if len(net.layers) != len(arch.layers):
        raise UserError(f"build: the supernet has {len(net.layers)} layers, the architecture {len(arch.layers)}")
    # as torch.compile has it
    whole = {name.removeprefix("_orig_mod."): value for name, value in net.state_dict().items()}
    state = {name: value for name, value in whole.items() if not name.startswith("layers.") and name != "alphas"}
    for index, candidate in enumerate(arch.layers):
        if candidate not in net.candidates:
            raise UserError(f"build: layers[{index}]: {candidate.label} is no candidate of the supernet")
        chosen = net.layers[index].candidates[net.candidates.index(candidate)]
        state.update({f"layers.{index}.{name}": value for name, value in chosen.state_dict().items()})
    return state
