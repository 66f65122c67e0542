"""Rules from planted tables: attention where it was put comes out there, and noise comes out as unsupported."""

import numpy as np
import pytest

from derive.change_point import KINDS, Region, chance, explained, extend, fit, intervals
from derive.layout import overruled, par_rule_layout, rule_names
from derive.patterns import par_pattern
from derive.rules import Table, find_rules
from supernet.blocks import Candidate
from supernet.errors import SettingError

NAMES = ["feed_forward", "self_attention", "identity", "random_synthesizer"]
HIGH, LOW = 0.9, 0.05


def planted(
    mass: list[float],
    *,
    seeds: int = 1,
    steps: int = 5,
    noise: float = 0.02,
    names: tuple[str, ...] = tuple(NAMES[:3]),
    share: float = 0.9,
    rng_seed: int = 0,
) -> Table:
    """Self-attention has `mass` a layer; feed-forward has `share` of the rest, the other candidates what remains."""
    rng = np.random.default_rng(rng_seed)
    samples = []
    for _ in range(seeds):
        noisy = np.clip(np.array(mass) + rng.normal(0, noise, (steps, len(mass))), 0.001, 0.999)
        sample = np.repeat(((1 - noisy) * (1 - share) / max(1, len(names) - 2))[:, :, None], len(names), axis=2)
        sample[:, :, names.index("self_attention")] = noisy
        sample[:, :, names.index("feed_forward")] = 1 - noisy if len(names) == 2 else (1 - noisy) * share
        samples.append(sample)
    return table_of(samples, list(names))


def table_of(samples: list[np.ndarray], names: list[str]) -> Table:
    attention = np.array([Candidate(name).attention_like for name in names])
    return Table(samples, names, attention, np.array([name == "identity" for name in names]))


def rules_of(table: Table) -> dict[str, dict]:
    return {rule["rule"]: rule for rule in find_rules(table).rules}


def layout_of(table: Table, **forced: float) -> str:
    probabilities = np.mean([sample[-1] for sample in table.samples], axis=0)
    candidates = [Candidate(label) for label in table.labels]
    layout = par_rule_layout(probabilities, candidates, table.labels, find_rules(table), **forced)
    return "".join(layer.letter for layer in layout.layers)


PLANTED = {
    "early": ([HIGH] * 8 + [LOW] * 16, "early", [0, 8], 8, "s" * 8 + "f" * 16),
    "late": ([LOW] * 16 + [HIGH] * 8, "late", [16, 24], 8, "f" * 16 + "s" * 8),
    "middle": ([LOW] * 8 + [HIGH] * 8 + [LOW] * 8, "middle", [8, 16], 8, "f" * 8 + "s" * 8 + "f" * 8),
    "everywhere": ([HIGH] * 24, "everywhere", [0, 24], 24, "s" * 24),
    "nowhere": ([LOW] * 24, "nowhere", [0, 0], 0, "f" * 24),
    "interleaved": ([HIGH, LOW] * 12, "everywhere", [0, 24], 12, "sf" * 12),
    "early and sparse": ([HIGH, LOW, LOW] * 5 + [LOW] * 17, "early", [0, 13], 5, "sff" * 5 + "f" * 17),
    "early, 12 layers": ([HIGH] * 4 + [LOW] * 8, "early", [0, 4], 4, "s" * 4 + "f" * 8),
    "late, 12 layers": ([LOW] * 8 + [HIGH] * 4, "late", [8, 12], 4, "f" * 8 + "s" * 4),
    "middle, 12 layers": ([LOW] * 4 + [HIGH] * 4 + [LOW] * 4, "middle", [4, 8], 4, "ffffssssffff"),
}


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("seeds", [1, 3])
def test_planted_attention_comes_out_where_it_was_put(name: str, seeds: int) -> None:
    mass, where, region, count, pattern = PLANTED[name]
    table = planted(mass, seeds=seeds)
    rules = rules_of(table)
    assert (rules["cut"]["where"], rules["cut"]["region"]) == (where, region)
    assert rules["cut"]["value"] == pytest.approx(region[1] / len(mass), abs=1e-6)
    assert rules["ratio"]["value"] == (pytest.approx(len(mass) / count, abs=1e-6) if count else None)
    assert rules["cut"]["supported"] and rules["ratio"]["supported"] and rules["kind"]["supported"]
    assert layout_of(table) == pattern
    if where in ("early", "middle", "late"):
        assert rules["cut"]["interval"][0] <= rules["cut"]["value"] <= rules["cut"]["interval"][1]


@pytest.mark.parametrize("candidates", [2, 3, 4])
@pytest.mark.parametrize("layers", [12, 24, 32])
def test_noise_is_hardly_ever_called_a_rule(layers: int, candidates: int) -> None:
    wrong = dict.fromkeys(("cut", "ratio", "kind", "attention_per_third", "identity"), 0)
    for rng_seed in range(20):
        rng = np.random.default_rng([layers, candidates, rng_seed])
        base = rng.dirichlet(np.ones(candidates), size=layers)
        sample = np.maximum(base + rng.normal(0, 0.01, (5, layers, candidates)), 1e-6)
        rules = rules_of(table_of([sample / sample.sum(axis=2, keepdims=True)], NAMES[:candidates]))
        for name in wrong:
            wrong[name] += rules[name]["supported"]
            assert (
                rules[name]["supported"]
                or "ot supported" in rules[name]["reason"]
                or "untrained" in rules[name]["reason"]
            )
    assert max(wrong.values()) <= 4, wrong


@pytest.mark.parametrize("names", [tuple(NAMES[:2]), tuple(NAMES[:3]), tuple(NAMES)])
def test_ties_support_nothing(names: tuple[str, ...]) -> None:
    table = table_of([np.full((4, 12, len(names)), 1 / len(names))], list(names))
    assert not any(rule["supported"] for rule in find_rules(table).rules)
    assert len(layout_of(table)) == 12


def test_one_layer_has_no_depth() -> None:
    for mass, pattern in (([0.95], "s"), ([0.02], "f")):
        rules = rules_of(planted(mass))
        assert not any(rules[name]["supported"] for name in ("cut", "ratio", "kind", "attention_per_third", "identity"))
        assert layout_of(planted(mass)) == pattern


def test_identity_heavy_search_means_fewer_layers() -> None:
    rules = rules_of(planted([HIGH] * 6 + [LOW] * 18, share=0.1))
    assert rules["identity"]["supported"] and rules["identity"]["useful_layers"] == 6
    assert rules["identity"]["value"] == pytest.approx(0.9 * np.mean([0.1] * 6 + [0.95] * 18), abs=0.02)
    assert rules["cut"]["region"] == [0, 6]


def test_attention_at_both_ends_is_said_and_not_called_one_region() -> None:
    cut = rules_of(planted([HIGH] * 5 + [LOW] * 14 + [HIGH] * 5))["cut"]
    assert (cut["where"], cut["supported"]) == ("ends", False)


def test_counts_of_the_paper_give_its_cut_of_two_thirds() -> None:
    """Mandava et al.: 4.67, 2.0 and 0.83 attention blocks in the thirds of 32 layers; fewer than one is the cut."""
    mass = [4.67 / 11] * 11 + [2.0 / 11] * 11 + [0.83 / 10] * 10
    rules = rules_of(planted(mass, seeds=6))
    assert rules["cut"]["value"] == pytest.approx(2 / 3, abs=1 / 32)
    assert rules["cut"]["interval"][0] > 0.5
    assert rules["ratio"]["value"] == pytest.approx(32 / 7.5, abs=0.1)
    assert rules["attention_per_third"]["value"] == pytest.approx([4.67, 2.0, 0.83], abs=0.1)
    mirrored = rules_of(planted(mass[::-1], seeds=6))["cut"]
    assert (mirrored["where"], mirrored["region"]) == ("late", [10, 32])


def test_more_attention_early_but_a_majority_throughout_is_everywhere() -> None:
    cut = rules_of(planted([0.95] * 8 + [0.7] * 16))["cut"]
    assert (cut["where"], cut["region"]) == ("everywhere", [0, 24])


def test_kinds_that_change_with_depth_come_out_as_two() -> None:
    sample = np.full((4, 24, 4), 0.02)
    sample[:, :12, NAMES.index("random_synthesizer")] = 0.94
    sample[:, 12:, NAMES.index("self_attention")] = 0.94
    table = table_of([sample], NAMES)
    kind = rules_of(table)["kind"]
    assert kind["supported"]
    assert kind["value"] == [
        {"layers": [0, 12], "candidate": "random_synthesizer"},
        {"layers": [12, 24], "candidate": "self_attention"},
    ]
    assert layout_of(table) == "r" * 12 + "s" * 12
    assert layout_of(table, cut=1.0, ratio=4) == ("rfff" * 3 + "sfff" * 3)


def test_seeds_that_disagree_widen_the_interval() -> None:
    agreeing = planted([HIGH] * 8 + [LOW] * 16, seeds=4)
    other = planted([HIGH] * 14 + [LOW] * 10, seeds=4)
    mixed = table_of([*agreeing.samples[:2], *other.samples[:2]], agreeing.labels)
    narrow, wide = rules_of(agreeing)["ratio"]["count_interval"], rules_of(mixed)["ratio"]["count_interval"]
    assert narrow == [8, 8] and wide[0] < 10 and wide[1] > 12


def test_the_same_table_gives_the_same_rules() -> None:
    table = planted([HIGH] * 5 + [0.4] * 4 + [LOW] * 11, seeds=2, noise=0.1)
    assert find_rules(table).rules == find_rules(table).rules


def test_forced_cut_and_ratio_give_the_published_layouts_whatever_the_evidence() -> None:
    for mass in ([LOW] * 16 + [HIGH] * 16, [LOW] * 32, [HIGH] * 32):
        assert layout_of(planted(mass), cut=2 / 3, ratio=5) == par_pattern(32)
    assert layout_of(planted([HIGH] * 24), cut=2 / 3, ratio=5) == "sff" * 5 + "f" * 9
    assert layout_of(planted([LOW] * 16 + [HIGH] * 8), ratio=6) == "f" * 16 + "sfsfsfsf"  # region as learned
    assert layout_of(planted([HIGH] * 8 + [LOW] * 16), cut=1.0) == "sff" * 8  # ratio as learned


def test_forced_values_say_whether_the_evidence_bears_them_out() -> None:
    table = planted([HIGH] * 8 + [LOW] * 16)
    candidates = [Candidate(label) for label in table.labels]
    for forced, supported in (({"cut": 1 / 3, "ratio": 3.0}, True), ({"cut": 0.8, "ratio": 6.0}, False)):
        layout = par_rule_layout(table.samples[0][-1], candidates, table.labels, find_rules(table), **forced)
        rules = {rule["rule"]: rule for rule in layout.rules}
        for name, value in forced.items():
            assert (rules[name]["value"], rules[name]["forced"], rules[name]["supported"]) == (value, True, supported)


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (["self_attention", "identity"], "ssssiiiiiiii"),
        (["feed_forward", "identity"], "ffffffffffff"),
        (["self_attention", "random_synthesizer"], "ssssssssssss"),
    ],
)
def test_search_spaces_without_one_side_still_give_a_layout(names: list[str], pattern: str) -> None:
    sample = np.zeros((3, 12, 2))
    sample[:, :4], sample[:, 4:] = [0.9, 0.1], [0.1, 0.9]
    if names[1] == "random_synthesizer":
        sample[:] = [0.9, 0.1]
    table = table_of([sample], names)
    assert layout_of(table) == pattern
    forced = layout_of(table, cut=1.0, ratio=3)
    assert set(forced[0::3]) == {"s"} and set(forced[1::3]) <= {"i", "f"}


@pytest.mark.parametrize(
    "forced", [{"cut": 0.0}, {"cut": 1.5}, {"ratio": 0.5}, {"ratio": float("nan")}, {"cut": "half"}]
)
def test_forced_values_that_mean_nothing_are_refused(forced: dict) -> None:
    with pytest.raises(SettingError, match=f"derive.{next(iter(forced))}"):
        layout_of(planted([HIGH] * 12), **forced)


def test_overruled_lists_exactly_the_layers_that_differ() -> None:
    table = planted([HIGH] * 8 + [LOW] * 16)
    probabilities, candidates = table.samples[0][-1], [Candidate(label) for label in table.labels]
    layout = par_rule_layout(probabilities, candidates, table.labels, find_rules(table), cut=1.0, ratio=8)
    why = rule_names(layout, probabilities, candidates)
    entries = overruled(probabilities, candidates, table.labels, layout.layers, why)
    assert [entry["layer"] for entry in entries] == [1, 2, 3, 4, 5, 6, 7, 8, 16]
    assert entries[0] == {
        "layer": 1,
        "preferred": "self_attention",
        "chosen": "feed_forward",
        "rule": "ratio",
        "preferred_probability": round(probabilities[1, 1], 6),
        "chosen_probability": round(probabilities[1, 0], 6),
    }


def test_step_is_found_against_a_plain_search_over_all_intervals() -> None:
    rng = np.random.default_rng(3)
    for _ in range(30):
        curve = rng.random(9)
        best = 0.0
        for start in range(9):
            for end in range(start + 1, 10):
                if end - start < 9:
                    inside = np.isin(np.arange(9), range(start, end))
                    levels = np.where(inside, curve[inside].mean(), curve[~inside].mean())
                    best = max(best, ((curve - curve.mean()) ** 2).sum() - ((curve - levels) ** 2).sum())
        assert max(explained(curve[None], kind).max() for kind in KINDS) == pytest.approx(best)


def test_chance_is_uniform_under_noise() -> None:
    rng = np.random.default_rng(5)
    chances = [chance(rng.random((1, 16)), np.random.default_rng(k)) for k in range(200)]
    assert 0.01 <= np.mean(np.array(chances) <= 0.05) <= 0.1
    assert 0.4 <= np.mean(np.array(chances) <= 0.5) <= 0.6


def test_flat_and_tiny_curves_have_no_region() -> None:
    assert fit(np.full(8, 0.4)) is None
    assert fit(np.array([0.4])) is None
    assert all(edges.size == 0 for edges in intervals(1, "early"))


def test_a_region_does_not_grow_into_a_flat_rest() -> None:
    curves = np.array([[0.9] * 6 + [0.06] * 18])
    region = Region("early", 0, 6, 0.9, 0.06)
    assert extend(curves, region, np.random.default_rng(0)) == region
