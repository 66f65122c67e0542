"""Contenders and successive halving: what enters, what is kept, and that a stopped halving goes on."""

import json
import shutil
from pathlib import Path

import pytest
from made_runs import build_run
from tiny_runs import tiny

from derive import Architecture, derive_contenders
from derive.strict_json import read_json, write_json
from nas.config.sections import Config
from nas.machine.stop import StopFlag
from nas.stages.halving import KEEP, halving_stage, read_halving, rung_file
from supernet.errors import SettingError, UserError


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_run(
        tmp_path_factory.mktemp("made") / "run", layers=8, candidates=6, steps=12, seeds=2, stages=("search",)
    )


def test_contenders_are_different_and_keep_the_budget(run: Path) -> None:
    found = derive_contenders(run, drawn=4, random=3, budget=0.6)
    assert len({arch.layers for arch in found.values()}) == len(found)
    assert all(arch.cost["relative_to_interleaved"]["flops"] <= 0.6 + 1e-6 for arch in found.values())
    assert {name.rsplit("-", 1)[0] for name in found} == {"early", "drawn", "random"}
    random = [arch for name, arch in found.items() if name.startswith("random")]
    assert all(arch.cost["relative_to_interleaved"]["flops"] >= 0.85 * 0.6 for arch in random)


def test_early_layouts_are_attention_first_then_as_deep_as_the_budget_lets(run: Path) -> None:
    found = derive_contenders(run, drawn=0, random=0, budget=0.6)
    one, two = found["early-s1"].pattern, found["early-s2"].pattern
    assert one[0] == "s" and set(one[1:].rstrip("i")) == {"f"} and two.count("s") == 2 and two[0] == "s"
    assert set(two[4:]) <= {"f", "i"}
    deeper = one.rstrip("i") + "f"
    longer = Architecture.from_pattern(deeper.ljust(8, "i"), found["early-s1"].model)
    assert longer.relative_flops(found["early-s1"].model.max_len) > 0.6


def test_contenders_keep_the_rules_and_are_a_function_of_the_seed(run: Path) -> None:
    rules = [{"block": "identity", "at_least": 3}, {"block": "self_attention", "at_most": 0}]
    found = derive_contenders(run, drawn=3, random=3, budget=0.6, rules=rules, seed=5)
    assert found and all(arch.pattern.count("i") >= 3 and "s" not in arch.pattern for arch in found.values())
    again = derive_contenders(run, drawn=3, random=3, budget=0.6, rules=rules, seed=5)
    assert {name: arch.to_json() for name, arch in found.items()} == {
        name: arch.to_json() for name, arch in again.items()
    }
    other = derive_contenders(run, drawn=3, random=3, budget=0.6, rules=rules, seed=6)
    assert [arch.layers for arch in found.values()] != [arch.layers for arch in other.values()]


@pytest.fixture(scope="module")
def halved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Path, list[Architecture]]:
    """A real search of the smallest size, and a real halving on it."""
    from nas.stages.pipeline import search_only

    folder = tmp_path_factory.mktemp("halving") / "run"
    config = tiny(
        run__dir=str(folder), retrain__drawn=3, retrain__random=3, retrain__rung_tokens=256, search__budget=1.0
    )
    search_only(config, StopFlag())
    return config, folder, halving_stage(config, folder, [], StopFlag())


def test_every_rung_keeps_the_better_third(halved: tuple[Config, Path, list[Architecture]]) -> None:
    config, folder, left = halved
    rungs = read_json(folder / "halving.json")["rungs"]
    assert [rung["step"] for rung in rungs] == [round(share * config.retrain.steps) for share in config.retrain.rungs]
    names = None
    for rung in rungs:
        losses = [row["loss"] for row in rung["rows"]]
        assert losses == sorted(losses)
        kept = [row["kept"] for row in rung["rows"]]
        assert kept == [True] * max(1, len(kept) // KEEP) + [False] * (len(kept) - max(1, len(kept) // KEEP))
        assert names is None or names == {row["name"] for row in rung["rows"]}
        names = {row["name"] for row in rung["rows"] if row["kept"]}
    assert names == {arch.name for arch in left}
    assert {
        path.name for path in (folder / "retrain").iterdir()
    } == names  # what was dropped leaves no half-trained network
    for arch in left:
        assert Architecture.load(folder / "architectures" / f"{arch.name}.json").layers == arch.layers


def test_a_known_layout_does_not_enter(halved: tuple[Config, Path, list[Architecture]], tmp_path: Path) -> None:
    config, folder, left = halved
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    (copy / "halving.json").unlink()
    halving_stage(config, copy, left, StopFlag())
    entered = {row["pattern"] for row in read_json(copy / "halving.json")["rungs"][0]["rows"]}
    assert left[0].pattern not in entered


def test_a_finished_halving_is_read_and_a_stopped_one_goes_on(
    halved: tuple[Config, Path, list[Architecture]], tmp_path: Path
) -> None:
    config, folder, left = halved
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    before = (copy / "halving.json").read_bytes()
    assert [arch.layers for arch in halving_stage(config, copy, [], StopFlag())] == [arch.layers for arch in left]
    (copy / "halving.json").unlink()
    first = rung_file(
        copy / "retrain" / left[0].name / "seed-0", read_json(folder / "halving.json")["rungs"][0]["step"]
    )
    stamp = first.stat().st_mtime_ns
    halving_stage(config, copy, [], StopFlag())
    assert (copy / "halving.json").read_bytes() == before
    assert first.stat().st_mtime_ns == stamp  # the rung that was reached is not trained again


@pytest.mark.parametrize("rungs", [[0.0], [0.5, 0.5], [0.6, 0.3], [1.0]])
def test_rungs_rise_between_0_and_1(rungs: list[float]) -> None:
    with pytest.raises(SettingError, match="retrain.rungs: expected rising fractions"):
        tiny(retrain__rungs=rungs)


def test_layouts_that_the_search_scored_enter_before_blind_draws(run: Path, tmp_path: Path) -> None:
    """The best of each seed first; what breaks the budget, or stands there already, is passed over."""
    forward, nothing = "feed_forward", "identity"
    cheap = [[forward, *[nothing] * 7], [nothing, forward, *[nothing] * 6]]
    dear = ["self_attention"] * 8
    rows = [
        {"layers": layout, "cost": 0.1, "loss": loss}
        for layout, loss in zip([cheap[1], dear, cheap[0]], [2.5, 1.0, 2.0], strict=True)
    ]
    own = shutil.copytree(run, tmp_path / "run")
    write_json(own / "seed-0" / "layouts.json", {"part": "alphas", "layouts": rows})
    found = derive_contenders(own, drawn=3, random=0, budget=0.6)
    drawn = [[layer.label for layer in found[f"drawn-{number}"].layers] for number in (1, 2)]
    assert drawn == cheap
    assert len(found["drawn-3"].layers) == 8  # a blind one


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[]", "expected an object"),
        ('{"layouts": 3}', "layouts: expected a list"),
        ('{"layouts": [3]}', r"layouts\[0\]: expected an object"),
        ('{"layouts": [{"layers": ["identity"], "loss": 1}]}', r"layouts\[0\].layers"),
        ('{"layouts": [{"layers": LAYERS, "loss": "low"}]}', r"layouts\[0\].loss"),
        ('{"layouts": [{"layers": LAYERS, "loss": 1e999}]}', "layouts.json"),
    ],
)
def test_wrong_layouts_are_refused_by_path(run: Path, tmp_path: Path, content: str, words: str) -> None:
    own = shutil.copytree(run, tmp_path / "run")
    (own / "seed-1" / "layouts.json").write_text(content.replace("LAYERS", json.dumps(["identity"] * 8)))
    with pytest.raises(UserError, match=words):
        derive_contenders(own, drawn=1, random=0)


@pytest.mark.parametrize("name", ["../../elsewhere", "..", "/etc", "", 3, "a/b"])
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path: Path, name: object) -> None:
    """What was dropped is deleted by name."""
    row = {"name": "a", "kept": True}
    for content in (
        {"left": [name], "rungs": []},
        {"left": [], "rungs": [{"step": 1, "rows": [row, {"name": name}]}]},
        [],
        {"left": []},
    ):
        write_json(tmp_path / "halving.json", content)
        with pytest.raises(UserError, match="halving.json: "):
            read_halving(tmp_path / "halving.json")
    write_json(tmp_path / "halving.json", {"left": ["b"], "rungs": [{"step": 1, "rows": [row, {"name": "b"}]}]})
    assert read_halving(tmp_path / "halving.json") == (["b"], {"a"})
