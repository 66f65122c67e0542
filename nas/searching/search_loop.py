"""The search: weights and alphas trained in turn, each on its own part of the text.

Every random choice is a function of (seed, purpose, step), so a resumed run repeats an uninterrupted one bit for bit.
"""

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from derive.strict_json import write_json
from nas.config.sections import Config
from nas.costs.costs_table import CostTable
from nas.machine.distributed import stop_asked
from nas.machine.process import generator_from, versions
from nas.machine.stop import StopFlag
from nas.searching.live import Drawers, LiveView, TensorBoardLog
from nas.searching.scoring import write_layouts
from nas.searching.search_gates import relaxed_gates
from nas.searching.search_state import SearchState, build_state
from nas.searching.search_steps import arch_step, weight_step
from nas.searching.verdict import judge
from nas.training.checkpoint import MetricsLog
from nas.training.evaluation import evaluate
from nas.training.setup import Setup
from nas.training.train import passes
from nas.training.train_state import NotFinite, StepClock, go_back, resume, save_state
from supernet.gates import gumbel_noise, mean_entropy
from supernet.supernet import Supernet

DRAWS = 2  # gates over which the supernet's held-out loss is averaged


def run_search(
    setup: Setup,
    costs: CostTable,
    folder: Path,
    seed: int,
    *,
    stop: StopFlag,
    slot: int = 0,
    later: str = "",
    drawers: Drawers | None = None,
) -> None:
    """Train a supernet and write `probabilities.json`, `layouts.json`, `metrics.jsonl` and `checkpoint.pt` into
    `folder`.

    Goes on from the folder's checkpoint where there is one. `later` says on the progress bar what comes after, and
    `drawers` draw what can be seen meanwhile. Raises Stopped on a signal after the step in flight, and RunFailed when
    the loss stays non-finite, at a lower learning rate as well.
    """
    run, search, machine = setup.config.run, setup.config.search, setup.machine
    state = build_state(setup, seed)
    resume(state, folder, machine)
    progress = tqdm(
        total=search.steps, initial=state.step, desc=f"search seed {seed}{later}", position=slot, mininterval=1.0
    )
    live = LiveView(folder, drawers or {})
    board = TensorBoardLog(folder, run.tensorboard and machine.rank == 0, state.step)
    clock = StepClock(state.step)
    with (
        MetricsLog(folder / "metrics.jsonl", state.step) as metrics,
        progress,
        stop.deferred(),
        contextlib.closing(board),
    ):
        while state.step < search.steps:
            try:
                with clock:
                    numbers = weight_step(state, setup, seed)
                    learned = state.step - search.warmup_steps
                    if learned > 0 and learned % search.arch_every == 0:
                        numbers |= arch_step(state, setup, costs, seed)
            except NotFinite as failure:
                state = go_back(state, partial(build_state, setup, seed), folder, machine, failure)
                metrics.cut(state.step)
                board.cut(state.step)
                clock = StepClock(state.step)
                continue
            progress.update(state.step - progress.n)
            if _due(state.step, run.log_every, search.steps):
                speed = clock.steps_per_second(state.step, machine) * setup.tokens_a_step
                line = log_line(state, setup, costs, numbers) | {"tokens_per_second": round(speed, 1)}
                metrics.write(**line)
                board.write(line, state.recorded[-1])
                progress.set_postfix(
                    loss=line["loss"], entropy=line["entropy"], cost=line["expected_cost"], refresh=False
                )
            if state.step % run.checkpoint_every == 0 or state.step == search.steps:
                save_state(state, folder, machine)
                write_probabilities(folder, state, costs, setup.config, seed, verdict=None)
                if machine.rank == 0:
                    live.refresh()
            if stop_asked(machine, stop):
                save_state(state, folder, machine)
                stop.check()
    write_layouts(folder, state.model, setup, costs, seed)
    verdict = judge(state, setup, seed, folder / "metrics.jsonl")
    write_probabilities(folder, state, costs, setup.config, seed, verdict=verdict)


def log_line(state: SearchState, setup: Setup, costs: CostTable, numbers: dict[str, Tensor | float]) -> dict[str, Any]:
    """One line of metrics.jsonl; held-out figures only at the steps of `evaluate_every` and at the end."""
    search, net = setup.config.search, state.model
    with torch.no_grad():
        probabilities = net.probabilities()
        state.recorded_steps.append(state.step)
        state.recorded.append(probabilities.cpu().clone())
        line = {
            "step": state.step,
            "phase": "warmup" if state.step <= search.warmup_steps else "search",
            **{name: float(number) for name, number in numbers.items()},
            "entropy": round(float(mean_entropy(probabilities)), 6),
            "expected_cost": round(float(costs.expected(probabilities)) / costs.baseline, 6),
            "held_out_loss": None,
            "derived_loss": None,
        }
        first_or_last = state.step in (1, search.steps)
        if first_or_last or passes(state.step, search.evaluate_every, setup.config.run.log_every):
            line |= held_out_losses(net, setup, state.step - 1)
    return line


def held_out_losses(net: Supernet, setup: Setup, step: int) -> dict[str, float]:
    """`held_out_loss` of the supernet as it is trained, `derived_loss` of the most probable layout with inherited
    weights.

    The supernet's loss is the mean over DRAWS gates of the relaxation (the same noise at every step; `softmax` has
    none).
    """
    search, alphas = setup.config.search, net.alphas.detach().cpu()
    best = one_hot_rows(alphas)
    generator = generator_from("held-out gates")
    draws = 1 if search.relaxation == "softmax" else DRAWS
    noise = [gumbel_noise(tuple(alphas.shape), generator) for _ in range(draws)]
    mixed = [relaxed_gates(search, alphas, one, step) for one in noise]
    limit = search.evaluate_tokens
    losses = [evaluate(net, setup, "held_out", limit=limit, gates=gates).loss for gates in mixed]
    derived = evaluate(net, setup, "held_out", limit=limit, gates=best).loss
    return {"held_out_loss": sum(losses) / len(losses), "derived_loss": derived}


def one_hot_rows(alphas: Tensor) -> Tensor:
    """One-hot gates [N, C] at each row's maximum (the first where equal)."""
    return torch.nn.functional.one_hot(alphas.argmax(dim=-1), alphas.shape[-1]).float()


def write_probabilities(
    folder: Path, state: SearchState, costs: CostTable, config: Config, seed: int, *, verdict: dict[str, Any] | None
) -> None:
    """`probabilities.json`: every recorded softmax(alphas), noise-free, with the costs and the verdict."""
    write_json(
        folder / "probabilities.json",
        {
            "candidates": state.model.labels,
            "steps": state.recorded_steps,
            "probabilities": [[[round(p, 7) for p in row] for row in matrix.tolist()] for matrix in state.recorded],
            "cost": {**costs.to_json(), "budget": config.search.budget},
            "seed": seed,
            "versions": versions(),
            "verdict": verdict or {"converged": False, "reasons": ["the search has not finished"]},
        },
    )


def _due(step: int, every: int, last: int) -> bool:
    return step == 1 or step == last or step % every == 0
