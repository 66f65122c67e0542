"""Rules from planted tables: attention where it was put comes out there, and noise comes out as unsupported."""

import math

import numpy as np
import pytest

from benchmarks.rules import ORDER, REGIONS, noise, planted, read_back, supported_clauses
from derive.kind_table import Table
from derive.layout import overruled, par_rule_layout, rule_names
from derive.patterns import par_pattern
from derive.program_certainty import certainty
from derive.rules import Findings, find_rules
from derive.seed_agreement import agreement
from supernet.blocks import Candidate
from supernet.errors import SettingError

NAMES = ["feed_forward", "self_attention", "identity", "random_synthesizer"]
HIGH, LOW = 0.9, 0.05


def masses(
    mass: list[float],
    *,
    seeds: int = 1,
    steps: int = 5,
    wobble: float = 0.02,
    names: tuple[str, ...] = tuple(NAMES[:3]),
    share: float = 0.9,
    rng_seed: int = 0,
) -> Table:
    """Self-attention has `mass` a layer; feed-forward has `share` of the rest, the other candidates what remains."""
    rng = np.random.default_rng(rng_seed)
    samples = []
    for _ in range(seeds):
        noisy = np.clip(np.array(mass) + rng.normal(0, wobble, (steps, len(mass))), 0.001, 0.999)
        sample = np.repeat(((1 - noisy) * (1 - share) / max(1, len(names) - 2))[:, :, None], len(names), axis=2)
        sample[:, :, names.index("self_attention")] = noisy
        sample[:, :, names.index("feed_forward")] = 1 - noisy if len(names) == 2 else (1 - noisy) * share
        samples.append(sample)
    return table_of(samples, list(names))


def table_of(samples: list[np.ndarray], names: list[str], selection: str = "last") -> Table:
    attention = np.array([Candidate(name).attention_like for name in names])
    return Table(samples, names, attention, np.array([name == "identity" for name in names]), selection)


def sharp(layouts: list[str], winner: float = 0.97, letters: str = "sfi") -> Table:
    """A table of one recorded step a seed, each seed's layout its own."""
    names = {Candidate(name).letter: name for name in [*NAMES, "dense_synthesizer", "factorized_random_synthesizer"]}
    samples = []
    for layout in layouts:
        sample = np.full((1, len(layout), len(letters)), (1 - winner) / (len(letters) - 1))
        sample[0, np.arange(len(layout)), [letters.index(letter) for letter in layout]] = winner
        samples.append(sample)
    return table_of(samples, [names[letter] for letter in letters])


def rules_of(table: Table) -> dict[str, dict]:
    return {rule["rule"]: rule for rule in find_rules(table).rules}


def layout_of(table: Table, found: Findings | None = None, **forced: float) -> str:
    candidates = [Candidate(label) for label in table.labels]
    layout = par_rule_layout(table, candidates, found or find_rules(table), **forced)
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
    table = masses(mass, seeds=seeds)
    found = find_rules(table)
    rules = {rule["rule"]: rule for rule in found.rules}
    assert (rules["cut"]["where"], rules["cut"]["region"]) == (where, region)
    assert rules["cut"]["value"] == pytest.approx(region[1] / len(mass), abs=1e-6)
    assert rules["ratio"]["value"] == (pytest.approx(len(mass) / count, abs=1e-6) if count else None)
    # four of twelve layers from three candidates: one seed does not tell much more than it takes to say so
    tells = name != "middle, 12 layers" or seeds > 1
    assert all(rules[rule]["supported"] == tells for rule in ("program", "cut", "ratio", "kind"))
    assert layout_of(table, found) == pattern and rules["program"]["kept"]["share"] == pytest.approx(1, abs=0.05)
    assert ("One seed" in rules["program"]["reason"]) == (seeds == 1)
    if where in ("early", "middle", "late"):
        assert rules["cut"]["interval"][0] <= rules["cut"]["value"] <= rules["cut"]["interval"][1]


@pytest.mark.parametrize("name", REGIONS)
def test_attention_stays_in_the_region_it_was_planted_in(name: str) -> None:
    """The three tables on which separate estimates of count and cut went wrong."""
    places, layers = REGIONS[name]
    layout = "".join("s" if layer in places else "f" for layer in range(layers))
    rng = np.random.default_rng(0)
    assert read_back(planted(layout, "sfi", 0.97, seeds=1, concentration=math.inf, rng=rng)) == layout
    for _ in range(5):
        made = read_back(planted(layout, "sfi", 0.6, seeds=3, concentration=20, rng=rng))
        held = [layer for layer, letter in enumerate(made) if letter == "s"]
        assert held and np.mean([places[0] <= layer <= places[-1] for layer in held]) >= 0.75


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("kind", ["flat", "sharp", "even"])
def test_noise_has_no_supported_clause(kind: str, seeds: int) -> None:
    rng = np.random.default_rng(0)
    found = 0
    for draw in range(100):
        layers, candidates = [(8, 5), (12, 3), (24, 3), (24, 5)][draw % 4]
        found += supported_clauses(noise(kind, ORDER[:candidates], layers=layers, seeds=seeds, rng=rng)) > 0
    assert found <= 5


def test_what_noise_supports_is_nothing_and_says_so() -> None:
    rng = np.random.default_rng(0)
    for kind in ("flat", "sharp"):
        for rule in find_rules(noise(kind, "sfi", layers=12, seeds=3, rng=rng)).rules:
            assert not rule["supported"] and rule["reason"].startswith("Not supported by the evidence")


@pytest.mark.parametrize("names", [tuple(NAMES[:2]), tuple(NAMES[:3]), tuple(NAMES)])
def test_ties_support_nothing(names: tuple[str, ...]) -> None:
    table = table_of([np.full((4, 12, len(names)), 1 / len(names))], list(names))
    assert not any(rule["supported"] for rule in find_rules(table).rules)
    assert layout_of(table) == "f" * 12


def test_one_layer_has_no_depth() -> None:
    for mass, pattern in (([0.95], "s"), ([0.02], "f")):
        assert not any(rule["supported"] for rule in find_rules(masses(mass)).rules)
        assert layout_of(masses(mass)) == pattern


def test_identity_heavy_search_means_fewer_layers() -> None:
    rules = rules_of(masses([HIGH] * 6 + [LOW] * 18, share=0.1))
    assert rules["identity"]["supported"] and rules["identity"]["useful_layers"] == 6
    assert rules["identity"]["value"] == pytest.approx(0.9 * np.mean([0.1] * 6 + [0.95] * 18), abs=0.02)
    assert rules["cut"]["region"] == [0, 6]


def test_attention_at_both_ends_is_said_and_not_called_one_region() -> None:
    rules = rules_of(masses([HIGH] * 5 + [LOW] * 14 + [HIGH] * 5))
    assert (rules["cut"]["where"], rules["cut"]["supported"]) == ("ends", False)
    assert rules["program"]["supported"]
    assert rules["program"]["value"] == "layers 5 to 18 hold feed_forward; self_attention elsewhere"


def test_irregular_layouts_that_all_seeds_are_sure_of_are_not_contradicted_silently() -> None:
    layout = "sffsisffifssfisfsiffsfii"
    found = find_rules(sharp([layout] * 3))
    made, contradicted = layout_of(sharp([layout] * 3), found), {entry["layer"] for entry in found.contradicted}
    assert contradicted == {layer for layer in range(24) if made[layer] != layout[layer]} and contradicted
    reason = found.rules[0]["reason"]
    for entry in found.contradicted:
        assert entry["certain"] and f"{entry['layer']} ({entry['preferred']} 0.97" in reason
    kept = found.rules[0]["kept"]
    assert kept["nothing"] < kept["rule"] < kept["argmax"] and 0 < kept["share"] < 1


def test_layers_that_only_some_seeds_are_sure_of_are_counted_and_not_called_certain() -> None:
    found = find_rules(sharp(["ssssffffffffffff"] * 2 + ["ssssffffffsfffff"]))
    assert layout_of(sharp(["ssssffffffffffff"] * 2 + ["ssssffffffsfffff"]), found) == "ssss" + "f" * 12
    assert found.contradicted == [] and "contradicts no layer" in found.rules[0]["reason"]


def test_seeds_that_agree_on_composition_only_give_a_count() -> None:
    """The paper's six searches: seven to nine blocks, most of them early, no two alike."""
    rng = np.random.default_rng(0)
    layouts = []
    for _ in range(6):
        held = {*rng.choice(11, 5, replace=False), *(11 + rng.choice(11, 2, replace=False))}
        layouts.append("".join("s" if layer in held else "f" for layer in range(32)))
    table = sharp(layouts)
    found = find_rules(table)
    rules = {rule["rule"]: rule for rule in found.rules}
    assert found.program.clauses[0].form == "count"
    assert rules["cut"]["value"] <= 0.75 and rules["cut"]["where"] == "early"
    assert rules["ratio"]["value"] == pytest.approx(32 / 7, abs=1)
    assert rules["attention_per_third"]["program"][0] >= 4 and rules["attention_per_third"]["program"][2] == 0
    both = agreement(table.selected())
    assert both["by_composition"] == 1 and both["by_layer"] < 0.9
    assert both["layers"] < 32 and "when only the number of each kind counts" in rules["program"]["reason"]


def test_agreement_of_hand_made_seeds() -> None:
    both = agreement(sharp(["ssff", "sfsf", "ssff"]).selected())
    assert both == {"seeds": 3, "by_layer": round((0.5 + 1 + 0.5) / 3, 4), "by_composition": 1.0, "layers": 2}
    assert agreement(sharp(["ssff"]).selected())["by_layer"] is None
    assert agreement(sharp(["ssss", "ffff"]).selected())["by_composition"] == 0


def test_kinds_that_change_with_depth_come_out_as_two() -> None:
    table = sharp(["r" * 12 + "s" * 12] * 2, letters="sfir", winner=0.94)
    kind = rules_of(table)["kind"]
    assert kind["supported"]
    assert kind["value"] == [
        {"candidate": "random_synthesizer", "first": 0, "last": 11},
        {"candidate": "self_attention", "first": 12, "last": 23},
    ]
    assert "random_synthesizer in layers 0 to 11 and self_attention in layers 12 to 23" in kind["reason"]
    assert layout_of(table) == "r" * 12 + "s" * 12
    assert layout_of(table, cut=1.0, ratio=4) == ("rfff" * 3 + "sfff" * 3)


def test_kinds_that_nothing_orders_are_left_to_each_layer() -> None:
    rng = np.random.default_rng(0)
    layouts = ["".join(rng.choice(list("sdrq"), size=12)) + "f" * 12 for _ in range(4)]
    table = sharp(layouts, letters="sfidrq")
    found = find_rules(table)
    kind = next(rule for rule in found.rules if rule["rule"] == "kind")
    assert found.program.clauses[0].holds == "attention" and not kind["supported"]
    assert layout_of(table, found)[12:] == "f" * 12
    attention = table.mean()[:, table.attention]
    held = [table.labels[at] for at in np.flatnonzero(table.attention)[attention.argmax(axis=1)]]
    assert found.program.labels()[:12] == held[:12]


def test_the_default_searches_that_went_wrong() -> None:
    """Three seeds with self-attention certain in layer 0 and little else: no rule puts another block there."""
    table = sharp(["sffqffqf", "sffsfqff", "sqffffff"], letters="sfqi", winner=0.9)
    found = find_rules(table)
    made = layout_of(table, found)
    certain = [entry for entry in found.contradicted if entry["certain"]]
    assert made[0] == "s" or "layer 0" in found.rules[0]["reason"]
    assert all(str(entry["layer"]) in found.rules[0]["reason"] for entry in certain)


def test_values_come_from_the_selection() -> None:
    early, late = "ssssssffffffffffff", "ffffffffffffssssss"
    samples = [np.concatenate([sharp([early]).samples[0]] * 3 + [sharp([late]).samples[0]])] * 2
    names = ["self_attention", "feed_forward", "identity"]
    last, average = (table_of(samples, names, selection) for selection in ("last", "average"))
    assert layout_of(last) == late and layout_of(average) == early
    for table, selection in ((last, "last"), (average, "average")):
        rules = rules_of(table)
        assert {rule["selection"] for rule in rules.values()} == {selection}
        thirds = [part.sum() for part in np.array_split(table.mean()[:, 0], 3)]
        assert rules["attention_per_third"]["value"] == pytest.approx(thirds, abs=1e-3)
    assert not rules_of(last)["cut"]["supported"]  # three of four recorded steps say otherwise
    with pytest.raises(SettingError, match=r"derive\.selection"):
        table_of(samples, names, "median")


def test_seeds_that_disagree_widen_the_interval() -> None:
    agreeing = masses([HIGH] * 8 + [LOW] * 16, seeds=4)
    other = masses([HIGH] * 14 + [LOW] * 10, seeds=4)
    mixed = table_of([*agreeing.samples[:2], *other.samples[:2]], agreeing.labels)
    narrow, wide = rules_of(agreeing), rules_of(mixed)
    assert narrow["ratio"]["count_interval"] == [8, 8] and narrow["cut"]["supported"]
    assert wide["ratio"]["count_interval"] == [8, 14] and not wide["cut"]["supported"]
    assert wide["cut"]["end_interval"] == [8, 14]
    clause = wide["program"]["clauses"][0]
    assert clause["returns"] < 0.95 and not clause["supported"]


def test_clauses_tell_how_sure_their_numbers_are() -> None:
    clause = rules_of(sharp(["sfff" * 6 + "f" * 8] * 3))["program"]["clauses"][0]
    assert clause["supported"] and clause["returns"] == clause["exactly"] == 1
    assert clause["intervals"] == {"period": [4, 4], "start": [0, 0], "end": [24, 24]}


def test_the_same_table_gives_the_same_rules() -> None:
    table = masses([HIGH] * 5 + [0.4] * 4 + [LOW] * 11, seeds=2, wobble=0.1)
    assert find_rules(table).rules == find_rules(table).rules


def test_the_shortlist_has_what_an_exact_search_of_each_draw_finds() -> None:
    """Certainty looks for a draw's best program in a shortlist: here against the exact search in every mixture of
    seeds that a draw can be."""
    from itertools import combinations_with_replacement

    from derive.program_certainty import fits
    from derive.program_search import SAMPLES, search
    from derive.programs import NAT

    rng = np.random.default_rng(0)
    same = total = 0
    for name, concentration in (("sfff" * 4 + "f" * 8, 10), ("s" * 5 + "f" * 11, 5), ("sf" * 8, 5)):
        table = planted(name, "sfi", 0.6, seeds=3, concentration=concentration, rng=rng)
        sure, logs = certainty(table), table.logs()
        lengths = NAT * np.array([one.bits(table.kinds, table.default) for one in sure.shortlist])
        explained = fits(sure.shortlist, logs, table.kinds)
        for chosen in combinations_with_replacement(range(3), 3):
            weights = np.bincount(chosen, minlength=3).astype(float)
            exact = search(logs, table.kinds, table.default, weights[None])[0]
            best = (SAMPLES * explained @ weights - lengths).max()
            assert best <= exact.score + 1e-6
            same, total = same + (best >= exact.score - 1e-6), total + 1
    assert same >= 0.9 * total


def test_forced_cut_and_ratio_give_the_published_layouts_whatever_the_evidence() -> None:
    for mass in ([LOW] * 16 + [HIGH] * 16, [LOW] * 32, [HIGH] * 32):
        assert layout_of(masses(mass), cut=2 / 3, ratio=5) == par_pattern(32)
    assert layout_of(masses([HIGH] * 24), cut=2 / 3, ratio=5) == "sff" * 5 + "f" * 9
    assert layout_of(masses([LOW] * 16 + [HIGH] * 8), ratio=6) == "f" * 16 + "sfsfsfsf"  # region as learned
    assert layout_of(masses([HIGH] * 8 + [LOW] * 16), cut=1.0) == "sff" * 8  # ratio as learned


def test_forced_values_replace_attention_and_leave_the_other_clauses() -> None:
    table = sharp(["s" * 6 + "f" * 6 + "i" * 6] * 2)
    assert layout_of(table, cut=2 / 3, ratio=6) == "sfffsfffsfff" + "i" * 6
    layout = par_rule_layout(table, [Candidate(one) for one in table.labels], find_rules(table), cut=2 / 3, ratio=6)
    assert layout.rules[0]["forced"] and "every 4th of layers 0 to 11" in layout.rules[0]["value"]
    assert "".join(Candidate(label).letter for label in layout.program.labels()) == "sfffsfffsfff" + "i" * 6


def test_forced_values_say_whether_the_evidence_bears_them_out() -> None:
    table = masses([HIGH] * 8 + [LOW] * 16)
    candidates = [Candidate(label) for label in table.labels]
    for forced, supported in (({"cut": 1 / 3, "ratio": 3.0}, True), ({"cut": 0.8, "ratio": 6.0}, False)):
        layout = par_rule_layout(table, candidates, find_rules(table), **forced)
        rules = {rule["rule"]: rule for rule in layout.rules}
        for name, value in forced.items():
            assert (rules[name]["value"], rules[name]["forced"], rules[name]["supported"]) == (value, True, supported)


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (["self_attention", "identity"], "ssssiiiiiiii"),
        (["feed_forward", "identity"], "ffffiiiiiiii"),
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
        layout_of(masses([HIGH] * 12), **forced)


def test_overruled_lists_exactly_the_layers_that_differ() -> None:
    table = masses([HIGH] * 8 + [LOW] * 16)
    probabilities, candidates = table.samples[0][-1], [Candidate(label) for label in table.labels]
    layout = par_rule_layout(table, candidates, find_rules(table), cut=1.0, ratio=8)
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
