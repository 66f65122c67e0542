"""How long the stages after the search will take, from a few measured steps."""

import time

from derive import Architecture, build
from nas.config.sections import Config
from nas.machine.process import count_workers
from nas.stages.halving import KEEP
from nas.training.optimizers import build_adamw
from nas.training.setup import Setup
from nas.training.train import train_step
from nas.training.train_state import TrainState

STEPS = 4  # measured, after one that is not


def minutes_after_search(setup: Setup) -> float:
    """Minutes of halving and retraining, taking every layout to cost what the baseline costs. Writes nothing."""
    config, machine = setup.config, setup.machine
    model = build(baseline_of(setup)).to(machine.device)
    state = TrainState(model, build_adamw(model, config.retrain.lr, config.retrain.weight_decay), machine.scaler())
    train_step(state, setup, config.run.seed)
    machine.wait()
    started = time.perf_counter()
    for _ in range(STEPS):
        train_step(state, setup, config.run.seed)
    machine.wait()
    seconds = (time.perf_counter() - started) / STEPS
    trainings = count_trainings(config)
    return trainings * config.retrain.steps * seconds / count_workers(config.run, max(1, round(trainings))) / 60


def baseline_of(setup: Setup) -> Architecture:
    """The task's baseline on the configuration's widths and layers."""
    return Architecture.preset(setup.task.baseline, setup.settings, setup.config.model.layers)


def count_trainings(config: Config) -> float:
    """Full trainings that the stages after the search amount to."""
    retrain = config.retrain
    full = (len(retrain.architectures) + len(retrain.against)) * retrain.seeds
    if not (retrain.drawn or retrain.random):
        return full
    kinds = sum(
        candidate.attention_like for candidate in config.candidates(config.model.settings(256, config.data.seq_len))
    )
    left, done, halving = 2 * kinds + retrain.drawn + retrain.random, 0.0, 0.0
    for share in retrain.rungs:
        halving += left * (share - done)
        left, done = max(1, left // KEEP), share
    return full + halving + left * (retrain.seeds - done)
