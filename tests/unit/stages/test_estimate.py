"""The estimate of what comes after the search: trainings counted by hand, time measured."""

import pytest
import torch
from tiny_runs import tiny

from nas.data.corpus import load_corpus
from nas.machine.device import choose_machine
from nas.stages.estimate import count_trainings, minutes_after_search
from nas.training.setup import Setup


def test_trainings_are_counted_with_the_halving() -> None:
    # two attention-like candidates: 4 early layouts, 3 drawn, 2 random; 9 to a third, 3 to two thirds, 1 to the end
    config = tiny(
        retrain__drawn=3, retrain__random=2, retrain__rungs=[1 / 3, 2 / 3], retrain__architectures=["argmax", "budget"]
    )
    assert count_trainings(config) == pytest.approx(3 + 9 / 3 + 3 / 3 + 1 / 3)
    none = tiny(retrain__drawn=0, retrain__random=0, retrain__seeds=2, retrain__against=["interleaved"])
    assert count_trainings(none) == 4


def test_minutes_are_positive_and_grow_with_the_steps() -> None:
    config = tiny(retrain__steps=100)
    corpus, machine = load_corpus(config.data), choose_machine(config.run)
    state = torch.get_rng_state()
    short = minutes_after_search(Setup(config, corpus, machine))
    long = minutes_after_search(Setup(tiny(retrain__steps=10_000), corpus, machine))
    torch.set_rng_state(state)
    assert 0 < short < long
