"""Every kind of step that speed.py measures, with the floating-point operations that it takes.

One *average step* is one pass over one batch of the `weights` part and one over one of the `alphas` part, drawn, moved
and cut alike for all; with it go clipping and both optimizers. Ours takes the second pass once in `search.arch_every`
steps.
"""

import dataclasses
import itertools
from collections.abc import Callable
from functools import partial

import torch
from speed_sizes import FAR, Bench, timed
from torch import Tensor, nn

from derive import Architecture, build
from nas.config.sections import SearchConfig
from nas.costs.costs_table import build_costs
from nas.searching.search_state import build_state
from nas.searching.search_steps import arch_step, weight_step
from nas.training.optimizers import build_adamw
from nas.training.train import train_step
from nas.training.train_state import TrainState
from supernet.blocks import parse_candidates
from supernet.context import Context
from supernet.layers import build_layer
from supernet.network import Network

PLAIN, SOFT = "plain interleaved: training step", "plain soft mixture: weights + alphas"
AVERAGE, WHOLE = "sampled: average step", "sampled: average step, whole search"
MIXTURE, FAIR = "sampled: weights, warm-up's mixture", "sampled: weights, warm-up's fair paths"
PEERS = {name: f"nni {name}: weights + alphas" for name in ("DARTS", "GumbelDARTS", "Proxyless")}
ALL = -1  # every candidate of a layer

# step -> (forward passes' worth of operations, candidates that run in a layer). A backward pass is twice a forward
# pass, and once where only the alphas' gradient is taken; what a step of the alphas of `sampled` compares runs forward
# only. Proxyless's backward runs other candidates again, which no such product says.
PASSES = {
    PLAIN: (3, 0),
    "sampled: weights": (3, 1),
    MIXTURE: (3, ALL),
    FAIR: (3, 1),
    "sampled: alphas": (SearchConfig().arch_samples, 1),
    "gumbel: weights": (3, SearchConfig().active),
    "gumbel: alphas": (2, SearchConfig().active),
    "gumbel_hard: weights": (3, 1),
    "gumbel_hard: alphas": (2, ALL),
    "softmax: weights": (3, ALL),
    "softmax: alphas": (2, ALL),
    SOFT: (6, ALL),
    PEERS["DARTS"]: (6, ALL),
    PEERS["GumbelDARTS"]: (6, ALL),
}


def plain_step(bench: Bench) -> Callable[[], object]:
    """The limit: one training step of the interleaved layout."""
    model = build(interleaved(bench)).to(bench.machine.device)
    state = TrainState(model, build_adamw(model, 1e-3, 0.01), bench.machine.scaler())
    return partial(train_step, state, bench.setup, 0)


def interleaved(bench: Bench) -> Architecture:
    """Self-attention and feed-forward in turn, at the bench's depth and width."""
    return Architecture.preset("interleaved", bench.settings, bench.sizes.layers)


def search_steps(bench: Bench, relaxation: str, **search: object) -> dict[str, Callable[[], object]]:
    """Name -> our steps of a relaxation after the warm-up and, for `sampled`, the two kinds within it; all on one
    supernet."""
    config = bench.sizes.configuration(relaxation=relaxation, warmup_steps=0, **search)
    setup = dataclasses.replace(bench.setup, config=config)
    state = build_state(setup, 0)
    costs = build_costs(config, bench.settings)
    steps: dict[str, Callable[[], object]] = {
        f"{relaxation}: weights": partial(weight_step, state, setup, 0),
        f"{relaxation}: alphas": partial(arch_step, state, setup, costs, 0),
    }
    if relaxation == "sampled":
        for name, mixture in ((MIXTURE, 1.0), (FAIR, 0.0)):
            warming = bench.sizes.configuration(relaxation=relaxation, warmup_steps=FAR - 1, mixture=mixture)
            steps[name] = partial(weight_step, state, dataclasses.replace(bench.setup, config=warming), 0)
    return steps


class MixedOp(nn.Module):
    """The sum of all candidates, each times its probability, as most repositories write it."""

    def __init__(self, ops: list[nn.Module]):
        super().__init__()
        self.ops = nn.ModuleList(ops)
        self.alphas = nn.Parameter(torch.zeros(len(ops)))

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """x [B, T, d] -> x."""
        return sum(weight * op(x, context) for weight, op in zip(self.alphas.softmax(dim=0), self.ops, strict=True))


def soft_mixture_step(bench: Bench) -> Callable[[], None]:
    """A step of the alphas and one of the weights through such sums, each with a whole backward pass."""
    candidates = parse_candidates(bench.sizes.blocks, bench.settings)
    layers = [MixedOp([build_layer(one, bench.settings, n) for one in candidates]) for n in range(bench.sizes.layers)]
    net = Network(bench.settings, layers).to(bench.machine.device)
    alphas = [layer.alphas for layer in layers]
    optimizers = {
        "alphas": torch.optim.Adam(alphas, lr=1e-6, betas=(0.5, 0.999)),
        "weights": build_adamw(net, 1e-6, 0.01),
    }
    chosen = {id(alpha) for alpha in alphas}
    for group in optimizers["weights"].param_groups:
        group["params"] = [parameter for parameter in group["params"] if id(parameter) not in chosen]

    numbers = itertools.count()

    def step() -> None:
        number = next(numbers)
        for part, optimizer in optimizers.items():
            net.zero_grad()
            bench.loss(net, bench.draw(part, number)).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()

    return step


def own_turns(bench: Bench, relaxations: tuple[str, ...]) -> dict[str, Callable[[], float]]:
    """Name -> milliseconds of one more such step: the plain one and ours."""
    calls = {PLAIN: plain_step(bench)}
    for relaxation in relaxations:
        calls |= search_steps(bench, relaxation)
    return {name: partial(timed, call, bench.machine) for name, call in calls.items()}


def add_averages(times: dict[str, list[float]], relaxations: tuple[str, ...]) -> None:
    """Add each round's average step of every relaxation, and that over the whole default search, its warm-up
    included."""
    default = SearchConfig()
    for relaxation in relaxations:
        pairs = zip(times[f"{relaxation}: weights"], times[f"{relaxation}: alphas"], strict=True)
        times[f"{relaxation}: average step"] = [weights + alphas / default.arch_every for weights, alphas in pairs]
    mixture = default.mixture * default.warmup_steps
    shares = {MIXTURE: mixture, FAIR: default.warmup_steps - mixture, AVERAGE: default.steps - default.warmup_steps}
    rounds = range(len(times[AVERAGE]))
    times[WHOLE] = [sum(times[name][k] * steps for name, steps in shares.items()) / default.steps for k in rounds]


def step_flops(bench: Bench) -> dict[str, list[float]]:
    """Step -> [operations], as `flops_per_token` counts them; the mean over layouts where they are drawn, each as
    likely."""
    plain = interleaved(bench)
    layers = plain.layer_flops(bench.sizes.seq_len)
    around = plain.flops_per_token(bench.sizes.seq_len) - layers  # the head
    costs = build_costs(bench.config, bench.settings).values.double()
    found = {}
    for name, (passes, running) in PASSES.items():
        if running:
            layers = (
                bench.sizes.layers * float(costs.mean()) * (len(costs) if running == ALL else min(running, len(costs)))
            )
        found[name] = [passes * (around + layers) * bench.sizes.tokens]
    return found
