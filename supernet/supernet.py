"""The supernet: every layer mixes all candidates, and the alphas say how much of each."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from supernet.backbone import Backbone
from supernet.blocks import Candidate, parse_candidates
from supernet.gates import full_precision
from supernet.layers import MixedLayer, Mixture
from supernet.settings import ModelSettings, check_int


class Supernet(Backbone):
    """N layers of C candidates each. `net(tokens, gates)` -> logits, with memory_len > 0 (logits, memory).

    `model_config` is a mapping with the keys of a file's "model", plus "task" and "layers"; `candidates` are labels or
    objects. With `share_values` the attention kinds of a layer share norm, values and output projection; a network
    built from one of them has weights of its own. `alphas` [N, C] start at 0, so all candidates are equally likely.
    Raises SettingError for what does not fit.
    """

    def __init__(
        self,
        model_config: Mapping[str, Any],
        candidates: Sequence[str | Mapping[str, Any] | Candidate],
        *,
        share_values: bool = False,
    ):
        values = dict(model_config)
        layers = check_int(values.pop("layers", None), "model.layers", least=1)
        settings = ModelSettings.from_mapping(values, task=values.pop("task", "causal_lm"))
        self_candidates = parse_candidates(candidates, settings)
        super().__init__(
            settings,
            [MixedLayer(self_candidates, settings, layer, share_values=share_values) for layer in range(layers)],
        )
        self.candidates = self_candidates
        self.alphas = nn.Parameter(torch.zeros(layers, len(self_candidates)))

    @property
    def labels(self) -> list[str]:
        """The candidates' labels, in the order of the alphas' columns."""
        return [candidate.label for candidate in self.candidates]

    def probabilities(self) -> Tensor:
        """Noise-free softmax(alphas), [N, C]; differentiable."""
        return torch.softmax(full_precision(self.alphas), dim=-1)

    def weight_parameters(self) -> list[nn.Parameter]:
        """Every parameter but the alphas, in the module's order."""
        return [parameter for name, parameter in self.named_parameters() if name != "alphas"]

    def forward(
        self,
        tokens: Tensor,
        gates: Tensor,
        *,
        memory: Tensor | None = None,
        padding_mask: Tensor | None = None,
        skip_zeros: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """tokens [B, T] int64, gates [N, C] with rows that sum to 1 -> logits [B, T, V]; see Backbone.run.

        A candidate whose gate is a constant 0 is not run; with `skip_zeros` neither is one whose 0 carries a gradient,
        as `keep_largest` makes them. Constant gates that lie on the CPU tell which candidates to run without waiting
        for the device.
        """
        if gates.shape != self.alphas.shape:
            raise ValueError(f"gates must be {tuple(self.alphas.shape)}, got {tuple(gates.shape)}")
        values = None if gates.requires_grad and not skip_zeros else gates.tolist()
        mixtures = _mixtures(gates.to(tokens.device, non_blocking=True), values)
        return self.run(tokens, [(mixture,) for mixture in mixtures], memory=memory, padding_mask=padding_mask)


def _mixtures(gates: Tensor, values: list[list[float]] | None) -> list[Mixture]:
    """The mixture of each layer for gates [N, C] of the given values; without values every candidate runs."""
    if values is None:
        return [Mixture(row, range(gates.shape[1])) for row in gates]
    return [_mixture(row, row_values, layer) for layer, (row, row_values) in enumerate(zip(gates, values, strict=True))]


def _mixture(gates: Tensor, values: list[float], layer: int) -> Mixture:
    active = [index for index, value in enumerate(values) if value != 0]
    if not active:
        raise ValueError(f"gates[{layer}] are all 0; every row must sum to 1")
    return Mixture(None if len(active) == 1 and values[active[0]] == 1 else gates, active)
