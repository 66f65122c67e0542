"""What would fail after hours is refused before anything is written."""

import pytest
from tiny_runs import tiny

from derive import Architecture
from nas.data.corpus import load_corpus
from nas.stages.preflight import check_derivable, check_run
from supernet.errors import UserError


def check(**changes: object) -> list[Architecture]:
    config = tiny(**changes)
    return check_run(config, load_corpus(config.data))


def test_what_is_trained_beside_is_returned() -> None:
    assert [arch.name for arch in check(retrain__against=["interleaved", "ff", "interleaved"])] == ["interleaved", "ff"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"retrain__architectures": ["argmx"]}, "^retrain.architectures: unknown name 'argmx' .did you mean 'argmax'"),
        ({"retrain__architectures": ["argmax", "argmax"]}, "^retrain.architectures: a name stands twice"),
        ({"retrain__architectures": [], "retrain__against": []}, "^retrain.architectures: .*nothing would be trained"),
        ({"retrain__against": ["par-base"]}, "par-base: model.vocab_size is 267735"),
        ({"retrain__against": ["sfz"]}, "^retrain.against: 'sfz'"),
        ({"derive__rules": [{"block": "no_such", "at_most": 1}]}, r"^derive.rules\[0\].block: unknown block 'no_such'"),
        (
            {"derive__rules": [{"block": "identity", "at_most": 1}, {"blok": "identity"}]},
            r"^derive.rules\[1\].blok: unknown key",
        ),
        ({"search__blocks": ["self_attention", "feed_forward"]}, "budget: 0.3 cannot be met.* 0.[0-9]{3}"),
        (
            {"search__blocks": ["self_attention", "feed_forward"], "search__cost": "parameters"},
            "budget: 0.3 cannot be met",
        ),
        ({"derive__budget": 0.1, "derive__rules": [{"block": "self_attention", "at_least": 2}]}, "cannot be met"),
    ],
)
def test_refused(changes: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        check(**changes)


def test_a_budget_of_measured_time_is_seen_only_after_the_measurement() -> None:
    assert check(search__cost="latency", search__blocks=["self_attention", "feed_forward"], search__budget=0.01)
    config = tiny(search__cost="latency", search__blocks=["self_attention", "feed_forward"], search__budget=0.5)
    settings = config.model.settings(256, 16)
    for fast, fits in ((0.1, True), (0.9, False)):
        table = {"candidates": {"self_attention": {"median_ms": 1.0}, "feed_forward": {"median_ms": fast}}}
        if fits:
            check_derivable(config, settings, table)
        else:
            with pytest.raises(UserError, match="0.5 cannot be met.* 0.948"):
                check_derivable(config, settings, table)
    assert check(search__cost="none", search__budget=None, search__blocks=["self_attention", "feed_forward"])


def test_a_file_with_the_name_of_a_derived_architecture_is_refused(tmp_path) -> None:
    model = {**tiny().model.settings(256, 16).to_mapping()}
    Architecture.from_pattern("sf", model, name="budget").save(tmp_path / "a.json")
    with pytest.raises(UserError, match="^retrain.against: the name 'budget' is that of a derived architecture"):
        check(retrain__against=[str(tmp_path / "a.json")])
