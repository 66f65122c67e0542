"""Ways to search that the product does not have, on the space of ground_truth.py: python benchmarks/search_methods.py
WORK

Each is a change made between the steps of a search of the product, and each is held against the same table of trained
layouts. WORK may be that of ground_truth.py.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from ground_truth import EARLIER, LATE, METHODS, MIDDLE, configuration, print_table
from torch import Tensor

from derive.strict_json import write_json
from nas.costs.costs_table import build_costs
from nas.data.batches import Place, training_batch
from nas.machine.process import generator_from, run_jobs
from nas.machine.stop import StopFlag
from nas.searching.scoring import write_layouts
from nas.searching.search_gates import relaxed_gates
from nas.searching.search_loop import log_line, write_probabilities
from nas.searching.search_state import SearchState, build_state
from nas.searching.search_steps import arch_step, weight_step
from nas.searching.verdict import judge
from nas.training.checkpoint import MetricsLog
from nas.training.evaluation import evaluate
from nas.training.losses import part_losses
from nas.training.optimizers import learning_rate
from nas.training.setup import Setup, open_setup
from nas.training.train_state import save_state
from supernet.gates import mean_entropy

# Of the share of the alphas' steps that is past, 0 through the warm-up and 1 at the end: gates [N, C] of the next
# weight step, or None for the product's own
Change = Callable[[float], Tensor | None]


class Search(NamedTuple):
    """What a change may look at."""

    state: SearchState
    setup: Setup
    seed: int


def auxiliary_skip(search: Search) -> Change:
    """Beside every mixture a skip whose factor falls linearly from 1 to 0 (Chu et al. 2021, DARTS-minus)."""
    factor = 1.0

    def add_skip(layer: torch.nn.Module, inputs: tuple, output: Tensor) -> Tensor:
        return output + factor * inputs[0] if factor else output

    for layer in search.state.model.layers:
        layer.register_forward_hook(add_skip)

    def change(done: float) -> None:
        nonlocal factor
        factor = 1 - done

    return change


def entropy_pressure(search: Search) -> Change:
    """In the second half of the alphas' steps a plain gradient step down the layers' entropies, with a weight that
    rises from 0 to 1."""
    net, rate = search.state.model, search.setup.config.search.arch_lr

    def change(done: float) -> None:
        if done > 0.5:
            entropy = len(net.alphas) * mean_entropy(net.probabilities())
            (gradient,) = torch.autograd.grad(entropy, [net.alphas])
            with torch.no_grad():
                net.alphas -= rate * (2 * done - 1) * gradient

    return change


def dropping(search: Search) -> Change:
    """The least probable candidate of each layer leaves at each third of the alphas' steps (as in DrNAS and ASAP); two
    stay to the end."""
    alphas = search.state.model.alphas

    def change(done: float) -> None:
        kept = alphas.shape[1] - min(int(3 * done + 1e-9), 2)
        with torch.no_grad():
            border = alphas.topk(kept, dim=1).values[:, -1:]
            alphas.masked_fill_(alphas < border, -torch.inf)

    return change


def perturbation(search: Search, tuning: int = 25, tokens: int = 8192) -> Change:
    """At the end, layer after layer in random order: the candidate stays without which the mixture loses most, and the
    weights are tuned at a tenth of their rate (Wang et al. 2021, DARTS-PT).
    """
    state, setup, seed = search
    config = setup.config
    net, settings = state.model, config.search

    def gates() -> Tensor:
        return relaxed_gates(settings, net.alphas.detach(), torch.zeros_like(net.alphas), settings.steps)

    def loss_without(layer: int, candidate: int) -> float:
        others = gates()
        others[layer, candidate] = 0
        others[layer] /= others[layer].sum()
        return evaluate(net, setup, "alphas", limit=tokens, gates=others).loss

    def change(done: float) -> None:
        if done < 1:
            return
        for layer in torch.randperm(len(net.alphas), generator=generator_from(seed, "perturbed layers")).tolist():
            losses = torch.tensor([loss_without(layer, candidate) for candidate in range(net.alphas.shape[1])])
            with torch.no_grad():
                net.alphas[layer] = torch.full_like(losses, -torch.inf).index_fill(0, losses.argmax(), 0.0)
            net.train()
            for _ in range(tuning):
                place = Place(seed, "weights", state.step, segment=0)
                batch = training_batch(setup.corpus, "weights", config.data, place, memory_len=0, share=setup.share)
                losses = part_losses(net, batch, setup, gates(), memory=None)
                state.descend(losses, settings.weight_lr / 10, settings.clip, setup.machine, last=False)

    return change


def few_attending(search: Search) -> Change:
    """Every other fair step of the warm-up runs a layout with just one or two attending blocks, anywhere, so that deep
    ones are trained as the first of their path as well.
    """
    state, setup, seed = search
    config = setup.config
    layers, candidates = state.model.alphas.shape
    first = config.search.mixture * config.search.warmup_steps

    def change(done: float) -> Tensor | None:
        if not first <= state.step < config.search.warmup_steps or state.step % 2:
            return None
        generator = generator_from(seed, "few attending", state.step)
        choice = 2 + torch.randint(2, (layers,), generator=generator)  # feed_forward or identity
        places = torch.randperm(layers, generator=generator)[: int(torch.randint(1, 3, (), generator=generator))]
        choice[places] = torch.randint(2, (len(places),), generator=generator)  # one of the two that attend
        return torch.nn.functional.one_hot(choice, candidates).float()

    return change


def weight_step_at(search: Search, gates: Tensor) -> dict[str, Tensor]:
    """The product's weight step at given gates."""
    state, setup, seed = search
    config = setup.config
    step, steps = state.step, config.search
    place = Place(seed, "weights", step, segment=0)
    batch = training_batch(setup.corpus, "weights", config.data, place, memory_len=0, share=setup.share)
    state.model.train()
    rate = steps.weight_lr * learning_rate(step, steps.steps, floor=0.05)
    losses = part_losses(state.model, batch, setup, gates, memory=None)
    return {"loss": state.descend(losses, rate, steps.clip, setup.machine, last=False)}


SOFTMAX, SOFTMAX_LATE = METHODS["softmax (DARTS)"], METHODS["softmax, late"]
CHANGES: dict[str, tuple[dict, Callable[[Search], Change]]] = {  # the settings of ground_truth.py that each changes
    "softmax, auxiliary skip": (SOFTMAX, auxiliary_skip),
    "softmax, perturbation": (SOFTMAX, perturbation),
    "equal, perturbation": ({**SOFTMAX, "warmup_steps": 249}, perturbation),  # no step of the alphas at all
    "softmax late, entropy": (SOFTMAX_LATE, entropy_pressure),
    "softmax late, dropping": (SOFTMAX_LATE, dropping),
    "shorter, entropy": (LATE, entropy_pressure),
    "shorter, dropping": (LATE, dropping),
    "800 steps, dropping": (MIDDLE, dropping),
    "1,100 steps, few attending": (EARLIER, few_attending),
}


def timed_search(name: str, home: Path, seed: int, *, slot: int, stop: StopFlag) -> None:
    """One search in this process, its CPU seconds beside its files; a finished one is left as it is."""
    if (home / "seconds.json").exists():
        return
    torch.set_num_threads(1)
    home.mkdir(parents=True, exist_ok=True)
    settings, start = CHANGES[name]
    config = configuration(**settings)
    setup = open_setup(config)
    (home / "config.yaml").write_text(config.to_yaml())
    write_json(home / "data.json", setup.corpus.to_json())
    costs = build_costs(config, setup.settings)
    started = time.process_time()
    search = Search(build_state(setup, seed), setup, seed)
    state, steps = search.state, config.search
    change = start(search)
    with MetricsLog(home / "metrics.jsonl", 0) as metrics:
        while state.step < steps.steps:
            gates = change(max(0, state.step - steps.warmup_steps) / (steps.steps - steps.warmup_steps))
            numbers = weight_step(state, setup, seed) if gates is None else weight_step_at(search, gates)
            if state.step > steps.warmup_steps and (state.step - steps.warmup_steps) % steps.arch_every == 0:
                numbers |= arch_step(state, setup, costs, seed)
            if state.step == 1 or state.step % config.run.log_every == 0 or state.step == steps.steps:
                metrics.write(**log_line(state, setup, costs, numbers))
            stop.check()
    change(1.0)
    state.recorded[-1] = state.model.probabilities().detach()
    save_state(state, home, setup.machine)
    write_layouts(home, state.model, setup, costs, seed)
    verdict = judge(state, setup, seed, home / "metrics.jsonl")
    write_probabilities(home, state, costs, config, seed, verdict=verdict)
    write_json(home / "seconds.json", time.process_time() - started)


def main() -> None:
    """Search with every method and seed, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", choices=list(CHANGES), default=list(CHANGES))
    parser.add_argument("--workers", type=int, default=2, help="searches at a time")
    options = parser.parse_args()
    stop = StopFlag().install()
    run_jobs(
        timed_search,
        [
            (name, options.work / name / f"seed-{seed}", seed)
            for name in options.methods
            for seed in range(options.seeds)
        ],
        options.workers,
        stop,
    )
    print_table({name: configuration(**CHANGES[name][0]) for name in options.methods}, options.work, options.seeds)


if __name__ == "__main__":
    main()
