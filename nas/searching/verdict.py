"""Converged or not, and why: the figures that say whether the probabilities mean anything."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from nas.data.batches import Place
from nas.machine.process import generator_from
from nas.searching.search_state import SearchState
from nas.training.losses import part_losses
from nas.training.setup import Setup
from supernet.supernet import Supernet

RANDOM_LAYOUTS = 12  # uniform layouts that the derived one is held against
BATCHES = 8
MOST_ENTROPY = 0.5  # of ln C: above it the probabilities have not made up their mind
LEAST_DECIDED = 0.75  # share of layers whose winner leads by more than the last quarter's noise
LARGEST_GAP = 0.15  # nats between the supernet and the derived network
LEAST_RECORDS = 6  # lines of the log after the warm-up
LEAST_SIGNAL = 3.0  # standard errors by which the derived layout must beat uniform ones


def judge(state: SearchState, setup: Setup, seed: int, metrics: Path) -> dict[str, Any]:
    """The verdict of a finished search: {"converged", "reasons", "figures"}."""
    search = setup.config.search
    after = [index for index, step in enumerate(state.recorded_steps) if step > search.warmup_steps]
    history = torch.stack([state.recorded[index] for index in after]).numpy()
    figures = read_history(history, [candidate.block for candidate in state.model.candidates])
    figures |= measure_signal(state.model, setup, seed)
    figures["gap"] = _last_gap(metrics)
    updates = (search.steps - search.warmup_steps) // search.arch_every
    figures["most_movement"] = updates * search.arch_lr
    return verdict_of(figures)


def read_history(history: np.ndarray, blocks: list[str]) -> dict[str, float]:
    """Figures of the recorded probabilities [records, N, C] since the alphas began to learn.

    The last quarter of the records stands for the noise: a layer is decided when its winner's mean lead over the
    runner-up exceeds twice the lead's standard deviation there, and the winner never changes.
    """
    records, _layers, candidates = history.shape
    last = history[-max(2, math.ceil(records / 4)) :]
    winner = history[-1].argmax(axis=1)
    ranked = np.sort(last, axis=2)
    lead = ranked[:, :, -1] - ranked[:, :, -2]
    flips = (last.argmax(axis=2) != winner).any(axis=0)
    decided = (lead.mean(axis=0) > 2 * lead.std(axis=0)) & ~flips
    final = np.clip(history[-1], 1e-12, 1)
    return {
        "records": records,
        "decided": float(decided.mean()),
        "flipped_layers": int(flips.sum()),
        "margin": float(lead[-1].mean()),
        "entropy_share": float(-(final * np.log(final)).sum(axis=1).mean() / math.log(candidates)),
        "identity_share": float(np.mean([blocks[index] == "identity" for index in winner])),
        "distance_from_start": float(np.abs(history[-1] - 1 / candidates).sum(axis=1).mean() / 2),
    }


def measure_signal(net: Supernet, setup: Setup, seed: int) -> dict[str, float]:
    """Loss of the derived layout against uniformly drawn ones, all with inherited weights, on the alphas' text.

    `advantage` is the mean difference in nats, `signal` that difference in standard errors over batches. Without
    anything to learn it is noise, whatever the probabilities look like.
    """
    layers, candidates = net.alphas.shape
    generator = generator_from(seed, "verdict layouts")
    uniform = torch.randint(candidates, (RANDOM_LAYOUTS, layers), generator=generator)
    layouts = [net.alphas.detach().cpu().argmax(dim=-1), *uniform]
    gates = [functional.one_hot(layout, candidates).float() for layout in layouts]
    data = dataclasses.replace(setup.config.data, order="random")
    differences = []
    net.eval()
    with torch.no_grad():
        for number in range(BATCHES):
            place = Place(seed, "verdict", number, segment=number)
            batch = setup.task.training_batch(setup.corpus, "alphas", data, place, memory_len=0, share=(0, 1))
            derived, *others = [
                float(sum(loss for loss, _ in part_losses(net, batch, setup, layout, memory=None))) for layout in gates
            ]
            differences.append(sum(others) / len(others) - derived)
    mean = float(np.mean(differences))
    error = float(np.std(differences, ddof=1) / math.sqrt(BATCHES))
    return {"advantage": mean, "signal": mean / max(error, 1e-9)}


def verdict_of(figures: dict[str, Any]) -> dict[str, Any]:
    """The verdict for the figures; every test that fails gives one sentence."""
    reasons = []
    if figures["records"] < LEAST_RECORDS:
        reasons.append(
            f"only {figures['records']} records since the alphas began to learn; {LEAST_RECORDS} are needed to tell "
            "a lead from noise"
        )
    if not figures["most_movement"] >= 1:
        reasons.append(
            f"too few steps: the alphas could move by at most {figures['most_movement']:.2g}; 1 is the least "
            "that decides"
        )
    if not figures["decided"] >= LEAST_DECIDED:
        reasons.append(
            f"only {figures['decided']:.0%} of the layers have a winner that leads by more than the noise of the "
            "last quarter"
        )
    if not figures["entropy_share"] <= MOST_ENTROPY:
        reasons.append(f"the mean entropy is {figures['entropy_share']:.0%} of that of a uniform choice")
    if not (figures["signal"] >= LEAST_SIGNAL and figures["advantage"] >= 0.01):
        reasons.append(
            f"the derived layout beats uniformly drawn ones by {figures['advantage']:.4f} nats "
            f"({figures['signal']:.1f} standard "
            "errors): no evidence that any choice matters"
        )
    if figures["gap"] is None:
        reasons.append(
            "the derived network's loss was not measured, so it is not known whether the supernet speaks for it"
        )
    elif not figures["gap"] <= LARGEST_GAP:
        reasons.append(
            f"the derived network with inherited weights is {figures['gap']:.2f} nats worse than the supernet"
        )
    if figures["identity_share"] > 0.5:
        reasons.append(
            f"{figures['identity_share']:.0%} of the layers chose identity: a collapse, or far fewer layers suffice"
        )
    converged = not reasons
    if converged:
        reasons.append(
            f"{figures['decided']:.0%} of the layers are decided, and the derived layout beats uniformly drawn ones by "
            f"{figures['advantage']:.3f} nats"
        )
    rounded = {key: round(value, 6) if isinstance(value, float) else value for key, value in figures.items()}
    return {"converged": converged, "reasons": reasons, "figures": rounded}


def _last_gap(metrics: Path) -> float | None:
    """derived_loss - held_out_loss of the last line that has both."""
    for line in reversed(metrics.read_text(encoding="utf-8").splitlines()):
        values = json.loads(line)
        if values.get("derived_loss") is not None and values.get("held_out_loss") is not None:
            return values["derived_loss"] - values["held_out_loss"]
    return None
