"""What the candidates cost, in the unit that the search is held to."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nas.config.sections import Config
from nas.tasks.table import task_of
from supernet.blocks import candidate_cost, parse_candidate
from supernet.settings import ModelSettings

UNITS = {"none": "flops_per_token", "flops": "flops_per_token", "parameters": "parameters", "latency": "ms"}


@dataclass(frozen=True)
class CostTable:
    """Cost a layer of every candidate, in the order of the alphas' columns, and of the interleaved baseline as a
    whole."""

    unit: str
    by_label: dict[str, float]  # the candidates, and the baseline's blocks
    values: Tensor  # [C] fp32
    baseline: float
    budget: float | None
    active: bool  # whether the search is held to it

    def expected(self, probabilities: Tensor) -> Tensor:
        """Expected cost of all layers for probabilities [N, C], a scalar; linear, so its gradient is exact."""
        return (probabilities * self.values.to(probabilities.device)).sum()

    def penalty(self, expected: Tensor) -> Tensor:
        """What the alphas' loss is charged, in units of the baseline.

        With a budget one-sided, as PLANER's target: max(0, expected / (budget * baseline) - 1). Without: expected /
        baseline.
        """
        if not self.active:
            return expected * 0
        if self.budget is None:
            return expected / self.baseline
        return torch.relu(expected / (self.budget * self.baseline) - 1)

    def share_of(self, choice: list[int]) -> float:
        """Cost of a layout, one candidate's index a layer, as a fraction of the baseline's."""
        return float(self.values[choice].double().sum()) / self.baseline

    def to_json(self) -> dict[str, Any]:
        """`cost` of probabilities.json, without the budget."""
        return {"unit": self.unit, "candidates": self.by_label}


def build_costs(config: Config, settings: ModelSettings, latency: dict[str, Any] | None = None) -> CostTable:
    """The table for `search.cost`; `latency` is the content of latency.json where the cost is latency."""
    kind = config.search.cost
    candidates = config.candidates(settings)
    labels = [candidate.label for candidate in candidates]
    by_label = {}
    blocks = task_of(config.model.task).baseline_blocks
    for label in dict.fromkeys([*labels, *blocks]):
        if kind == "latency":
            by_label[label] = latency["candidates"][label]["median_ms"]
        else:
            parameters, flops = candidate_cost(parse_candidate(label, settings), settings, config.data.seq_len)
            by_label[label] = parameters if kind == "parameters" else flops
    return CostTable(
        unit=UNITS[kind],
        by_label=by_label,
        values=torch.tensor([float(by_label[label]) for label in labels]),
        baseline=config.model.layers / len(blocks) * sum(by_label[label] for label in blocks),
        budget=config.search.budget,
        active=kind != "none",
    )
