"""How long the stages after the search will take, from a few measured steps."""

import time

from derive import Architecture, build
from nas.config import Config
from nas.data import Corpus
from nas.halving import KEEP
from nas.machine import Machine
from nas.optimizers import build_adamw
from nas.process import count_workers
from nas.train import train_step
from nas.train_state import TrainState

STEPS = 4  # measured, after one that is not


def minutes_after_search(config: Config, corpus: Corpus, machine: Machine) -> float:
    """Minutes of halving and retraining, taking every layout to cost what the interleaved one costs. Writes nothing."""
    settings = config.model.settings(corpus.vocab_size, config.data.seq_len)
    model = build(Architecture.preset("interleaved", settings, config.model.layers)).to(machine.device)
    state = TrainState(model, build_adamw(model, config.retrain.lr, config.retrain.weight_decay), machine.scaler())
    train_step(state, config, corpus, machine, config.run.seed)
    machine.wait()
    started = time.perf_counter()
    for _ in range(STEPS):
        train_step(state, config, corpus, machine, config.run.seed)
    machine.wait()
    seconds = (time.perf_counter() - started) / STEPS
    trainings = count_trainings(config)
    return trainings * config.retrain.steps * seconds / count_workers(config.run, max(1, round(trainings))) / 60


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
