"""The trained supernet as an evaluator: layouts drawn from the probabilities, ranked by their loss with inherited
weights."""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from derive.strict_json import write_json
from nas.costs.costs_table import CostTable
from nas.machine.process import generator_from
from nas.training.evaluation import evaluate
from nas.training.setup import Setup
from supernet.gates import gumbel_noise, sampled_gates
from supernet.supernet import Supernet

DRAWS = 400  # at most, for as many different layouts within the budget as are scored
SCORED = 24
TOKENS = 16384  # of the `alphas` part


def write_layouts(folder: Path, net: Supernet, setup: Setup, costs: CostTable, seed: int) -> None:
    """`layouts.json`: different layouts within the budget, the one of lowest loss first.

    Probabilities treat layers one by one; this sees which choices go together. `cost` is a fraction of the interleaved
    layout's.
    """
    rows = []
    for choice in draw_layouts(net, costs, seed):
        gates = functional.one_hot(torch.tensor(choice), len(net.labels)).float()
        loss = evaluate(net, setup, "alphas", limit=TOKENS, gates=gates).loss
        rows.append(
            {"layers": [net.labels[index] for index in choice], "cost": round(costs.share_of(choice), 6), "loss": loss}
        )
    rows.sort(key=lambda row: (row["loss"], row["layers"]))
    write_json(folder / "layouts.json", {"part": "alphas", "layouts": rows})


def draw_layouts(net: Supernet, costs: CostTable, seed: int) -> list[list[int]]:
    """Up to SCORED different layouts from softmax(alphas) that keep the budget, in the order drawn."""
    generator, alphas = generator_from(seed, "scored layouts"), net.alphas.detach().cpu()
    found: list[list[int]] = []
    for _ in range(DRAWS):
        choice = _draw(alphas, generator)
        if choice not in found and (costs.budget is None or costs.share_of(choice) <= costs.budget):
            found.append(choice)
        if len(found) == SCORED:
            break
    return found


def _draw(alphas: Tensor, generator: torch.Generator) -> list[int]:
    return sampled_gates(alphas, gumbel_noise(tuple(alphas.shape), generator), 1.0).argmax(dim=-1).tolist()
