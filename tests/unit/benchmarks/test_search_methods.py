"""The changes to a search that the benchmark compares do what their names say."""

import pytest
import search_methods as methods
import torch

from nas.config.sections import Config, DataConfig, ModelConfig, SearchConfig
from nas.data.corpus import Corpus, load_corpus
from nas.machine.device import choose_machine
from nas.searching.search_state import build_state
from nas.training.setup import Setup
from supernet.gates import mean_entropy

BLOCKS = ["self_attention", "factorized_random_synthesizer", "feed_forward", "identity"]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus(DataConfig())


@pytest.fixture
def search(corpus: Corpus) -> methods.Search:
    config = Config(
        data=DataConfig(seq_len=7, batch_size=5),
        model=ModelConfig(layers=3, d_model=8, heads=2, d_inner=11),
        search=SearchConfig(blocks=BLOCKS, relaxation="softmax", steps=40, warmup_steps=20, mixture=0.25),
    )
    setup = Setup(config, corpus, choose_machine(config.run))
    return methods.Search(build_state(setup, 0), setup, 0)


def test_the_auxiliary_skip_adds_its_share_of_the_input_and_is_gone_at_the_end(search: methods.Search) -> None:
    net = search.state.model.eval()
    tokens, gates = torch.arange(14).view(2, 7), torch.full((3, 4), 0.25)
    plain = net(tokens, gates)
    change = methods.auxiliary_skip(search)
    change(0.5)
    assert not torch.equal(net(tokens, gates), plain)
    change(1.0)
    assert torch.equal(net(tokens, gates), plain)


def test_entropy_pressure_sets_in_after_half_and_sharpens(search: methods.Search) -> None:
    net, change = search.state.model, methods.entropy_pressure(search)
    with torch.no_grad():
        net.alphas += torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    before = mean_entropy(net.probabilities())
    change(0.5)
    assert mean_entropy(net.probabilities()) == before
    change(0.9)
    assert mean_entropy(net.probabilities()) < before


def test_dropping_leaves_the_two_most_probable(search: methods.Search) -> None:
    net, change = search.state.model, methods.dropping(search)
    with torch.no_grad():
        net.alphas += torch.tensor([0.3, 0.1, 0.4, 0.2])
    for done, kept in ((0.0, 4), (0.3, 4), (1 / 3, 3), (2 / 3, 2), (1.0, 2)):
        change(done)
        assert (net.probabilities() > 0).sum(dim=1).tolist() == [kept] * 3
    assert net.probabilities().argmax(dim=1).tolist() == [2] * 3


def test_perturbation_keeps_one_candidate_a_layer_and_tunes_the_weights(search: methods.Search) -> None:
    net, change = search.state.model, methods.perturbation(search, tuning=2, tokens=35)
    change(0.9)
    assert search.state.step == 0
    change(1.0)
    assert search.state.step == 3 * 2
    assert (net.probabilities() == 1).sum(dim=1).tolist() == [1] * 3


def test_few_attending_gives_a_path_with_one_or_two_of_them_in_every_other_fair_step(search: methods.Search) -> None:
    change = methods.few_attending(search)
    for step, own in ((4, True), (5, True), (6, False), (7, True), (20, True)):
        search.state.step = step
        gates = change(0.0)
        assert (gates is None) == own
    search.state.step = 6
    gates = change(0.0)
    assert gates.shape == (3, 4) and gates.sum(dim=-1).eq(1).all() and gates[:, :2].sum() in (1, 2)
