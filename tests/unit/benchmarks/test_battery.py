"""The battery's settings are those drawn, its layouts keep the budget, and its tables survive a kill."""

import dataclasses
import itertools
import math
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import battery
import battery_settings
import battery_truth
import pytest
from battery_layouts import Space
from battery_settings import CANDIDATES, IDS, LAYERS, ROWS, SETTINGS, SMALLEST, WIDTHS, Setting
from battery_tables import Row, Truth, append_row, best_crossed, chances_of_first, load_truth, read_rows

from derive.strict_json import read_json
from nas.machine.stop import StopFlag
from nas.training.setup import open_setup
from nas.training.train import train_architecture
from supernet.blocks import BLOCKS, parse_candidate

ROOT = Path(__file__).parents[3]
TINY = Setting(
    id="D0",
    corpus="sotu",
    layers=3,
    d_model=8,
    heads=2,
    d_inner=12,
    seq_len=16,
    batch_size=3,
    candidates=("self_attention", "random_synthesizer", "feed_forward[d_inner=6]", "identity"),
    budget=0.7,
    steps=10,
    lr=3e-3,
    networks=4,
)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations of a few tokens, and a local search of two steps."""
    monkeypatch.setattr(battery_truth, "FINAL_TOKENS", 64)
    monkeypatch.setattr(battery_truth, "RUNG_TOKENS", 48)
    monkeypatch.setattr(battery_truth, "LOCAL", 2)


def row(pattern: str, loss: float, *, seed: int = 0, origin: str = "random", rung: float | None = None) -> Row:
    """A made training of TINY."""
    rung = loss if rung is None else rung
    return Row(pattern, TINY.space.cost(pattern), origin, seed, loss, 0.01, rung, rung, rung, 1.5)


def made(losses: dict[str, tuple[float, float]], origin: str = "random") -> Truth:
    """A made table of TINY: both seeds of each layout."""
    found = {
        p: [row(p, loss, seed=seed, origin=origin) for seed, loss in enumerate(pair)] for p, pair in losses.items()
    }
    return Truth(TINY, found)


def test_the_settings_are_those_that_the_seed_draws() -> None:
    assert tuple(battery_settings.draw_settings()) == SETTINGS
    assert battery_settings.draw_settings("another")[0] != SETTINGS[0]
    assert tuple(setting.id for setting in SETTINGS) == IDS and sum(setting.held_out for setting in SETTINGS) == 6


@pytest.mark.parametrize("setting", SETTINGS, ids=IDS)
def test_settings_lie_in_the_ranges_and_make_a_configuration(setting: Setting) -> None:
    assert setting.layers in LAYERS and setting.d_model in WIDTHS and setting.seq_len in ROWS
    assert len(setting.candidates) in CANDIDATES and len(set(setting.candidates)) == len(setting.candidates)
    assert any(parse_candidate(label, setting.model).attention_like for label in setting.candidates)
    assert setting.space.count(setting.budget) >= SMALLEST
    config = battery_truth.configuration(setting)
    assert config.model.settings(256, setting.seq_len) == setting.model
    assert config.retrain.steps == setting.steps and config.retrain.lr == setting.lr


def test_both_halves_have_every_corpus_and_together_every_block() -> None:
    for half in "DH":
        assert {setting.corpus for setting in SETTINGS if setting.id[0] == half} == set(battery_settings.CORPORA)
    blocks = {parse_candidate(label, setting.model).block for setting in SETTINGS for label in setting.candidates}
    assert blocks == set(BLOCKS)


@pytest.mark.parametrize("setting", SETTINGS, ids=IDS)
def test_every_planned_layout_is_where_its_origin_says(setting: Setting) -> None:
    plan = battery_truth.planned(setting)
    assert plan == battery_truth.planned(dataclasses.replace(setting))  # whatever was computed before
    found = {name: [pattern for pattern, origin in plan if origin == name] for name in ("random", "above")}
    assert len(plan) >= 40 and len(dict(plan)) == len(plan) and plan[0][1] == "interleaved"
    assert 4 * len(found["random"]) >= 3 * (len(plan) + (battery_settings.LOCAL if setting.networks else 0))
    for pattern, origin in plan:
        cost = battery_truth.architecture_of(setting, pattern).relative_flops(setting.seq_len)
        assert setting.space.cost(pattern) == pytest.approx(cost)
        assert setting.space.network(pattern) == pattern
        if origin != "interleaved":
            assert (cost <= setting.budget + 1e-9) == (origin == "random")
    if not setting.networks:
        assert set(found["random"]) == set(setting.space.all(setting.budget))


def test_networks_are_counted_once_and_drawn_alike() -> None:
    space, budget = TINY.space, 0.7
    every = {
        space.network("".join(letters))
        for letters in itertools.product(space.labels, repeat=3)
        if set(letters) != {"i"}
    }
    within = {pattern for pattern in every if space.cost(pattern) <= budget + 1e-9}
    assert set(space.all()) == every and space.count() == len(every)
    assert set(space.all(budget)) == within and space.count(budget) == len(within) < len(every)
    assert set(space.all(least=budget)) == every - within and space.count(least=budget) == len(every - within)
    source, drawn = random.Random(1), dict.fromkeys(within, 0)
    for _ in range(300 * len(within)):
        drawn[space.draw(source, budget)] += 1
    assert min(drawn.values()) > 230 and max(drawn.values()) < 370
    several = space.draw_several(random.Random(1), 5, budget)
    assert len(set(several)) == 5 and set(several) <= within
    assert set(space.draw_several(random.Random(1), 500, budget)) == within


def test_neighbours_are_one_change_away_and_within_the_budget() -> None:
    space = TINY.space
    assert space.neighbours("rFi", 9.0) == sorted(
        {"sFi", "FFi", "rri", "rsi", "Fri", "Fii", "rii"}
        | {"srF", "rrF", "FrF", "rsF", "rFF", "rFs", "rFr"}  # one more layer, anywhere
    )
    assert all(space.cost(other) <= 0.4 for other in space.neighbours("rFi", 0.4))
    deep = Space(TINY.model, 3, ["self_attention", "feed_forward"])
    assert deep.neighbours("ssf", 9.0) == ["fsf", "fss", "sff", "sfs", "sss"]


def test_patterns_and_labels() -> None:
    space = TINY.space
    assert space.labels["F"] == "feed_forward[d_inner=6]" and space.candidate("F").options == (("d_inner", 6),)
    assert space.pattern(["identity", "self_attention", "feed_forward[d_inner=6]"]) == "sFi"
    assert space.pattern(["feed_forward"] * 3) == "fff"  # known, though no candidate
    for wrong in ("sf", "sfsf", "sf?", "sfQ"):
        with pytest.raises(ValueError, match="expected 3 letters"):
            space.network(wrong)
    with pytest.raises(ValueError, match="would both be F"):
        Space(TINY.model, 3, ["feed_forward[d_inner=6]", "feed_forward[d_inner=5]"])


def test_standing_and_what_is_not_in_the_table() -> None:
    truth = made({"rFi": (2.0, 2.2), "FFi": (2.4, 2.4), "rii": (2.3, 2.3), "sss": (1.0, 1.0)})
    assert truth.within == ["rFi", "rii", "FFi"] and truth.best == pytest.approx(2.1)
    assert battery.standing("irF", truth) == pytest.approx((0.0, 0.0))  # the same network
    assert battery.standing("FiF", truth) == pytest.approx((0.3, 200 / 3))
    assert battery.standing("sss", truth) == (math.inf, 100.0)
    assert battery.standing("rri", truth) is None
    assert truth.noise == pytest.approx(math.sqrt(0.02 / 4))


def test_random_search_is_the_mean_over_all_choices() -> None:
    losses = {"rFi": (2.0, 2.2), "FFi": (2.5, 2.3), "rii": (2.1, 2.3), "Fii": (2.6, 2.4)}
    truth = made(losses)
    for count in (1, 2, 3, 4):
        regrets = []
        for seed, chosen in itertools.product(range(2), itertools.combinations(losses, count)):
            best = min(chosen, key=lambda pattern: losses[pattern][seed])
            regrets.append(sum(losses[best]) / 2 - 2.1)
        assert battery.random_search(truth, count).regret == pytest.approx(sum(regrets) / len(regrets))
    assert battery.random_search(truth, 5) is None and sum(chances_of_first(9, 4)) == pytest.approx(1)
    assert best_crossed(truth) == pytest.approx((2.2 + 2.0) / 2)


def test_a_table_is_read_as_written_and_half_a_row_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "D0.csv"
    assert read_rows(path) == []
    rows = [row("rFi", 2.25), row("rFi", math.inf, seed=1), row("sss", 2.5, origin="above")]
    for one in rows[:2]:
        append_row(path, one)
    with path.open("a") as file:
        file.write("sss,1.0,above,0,2.")
    assert [one.loss for one in read_rows(path)] == [2.25, math.inf]
    append_row(path, rows[2])
    assert [(one.pattern, one.origin, one.seed, one.loss) for one in read_rows(path)] == [
        (one.pattern, one.origin, one.seed, one.loss) for one in rows
    ]
    assert list(load_truth(TINY, tmp_path).rows) == ["rFi"]  # the other lacks a seed


def test_a_training_is_the_projects_own_to_the_bit(tmp_path: Path, short: None) -> None:
    setup, arch = open_setup(battery_truth.configuration(TINY)), battery_truth.architecture_of(TINY, "sFr")
    found = battery_truth.train_layout(setup, arch, 1)
    train_architecture(arch, setup, tmp_path / "own", 1, stop=StopFlag())
    result = read_json(tmp_path / "own" / "result.json")
    assert (found["loss"], found["standard_error"]) == (result["held_out_loss"], result["standard_error"])
    assert all(map(math.isfinite, found.values())) and found["rung_30"] != found["rung_60"]


def test_trainings_go_on_where_they_stopped_and_the_table_ends_alike(tmp_path: Path, short: None) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    battery_truth.train_all([TINY], whole, tmp_path, StopFlag())
    truth = load_truth(TINY, whole)
    origins = [rows[0].origin for rows in truth.rows.values()]
    assert origins == ["interleaved", *["random"] * 4, *["above"] * 3, "local", "local"]
    assert all(truth.rows[p][0].cost <= 0.7 + 1e-6 for p in truth.origin("random", "local"))
    for rows in (1, 3, 9):
        battery_truth.train_all([TINY], parts, tmp_path, StopFlag(), rows=rows)
        assert len(load_truth(TINY, parts).rows) == rows
        lines = (parts / "D0.csv").read_text().splitlines(keepends=True)
        (parts / "D0.csv").write_text("".join(lines[:-1]) + lines[-1][:9])  # as a kill in a write leaves it
    battery_truth.train_all([TINY], parts, tmp_path, StopFlag())
    plain = [[dataclasses.replace(one, seconds=0.0) for one in read_rows(home / "D0.csv")] for home in (whole, parts)]
    assert plain[0] == plain[1]
    other = dataclasses.replace(TINY, lr=1e-2)
    with pytest.raises(ValueError, match=r"D0.json: the table is of another setting, retrain"):
        battery_truth.Trainer(other, whole, tmp_path)


DRIVER = """
import dataclasses
import sys
from pathlib import Path
sys.path[:0] = [{tests!r}, {benchmarks!r}]
import battery_truth
from test_battery import TINY
battery_truth.FINAL_TOKENS = battery_truth.RUNG_TOKENS = 64
battery_truth.SETTINGS = (dataclasses.replace(TINY, steps=40),)
sys.argv = ["battery_truth.py", "--all", "--folder", {folder!r}]
battery_truth.main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143)])
def test_a_signal_loses_no_row(number: signal.Signals, code: int, tmp_path: Path) -> None:
    program = DRIVER.format(
        tests=str(Path(__file__).parent), benchmarks=str(ROOT / "benchmarks"), folder=str(tmp_path / "tables")
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", program], env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        told = [process.stdout.readline() for _ in range(3)]
        process.send_signal(number)
        rest = process.stdout.read().splitlines()
        assert process.wait(30) == code
    finally:
        process.kill()
        process.stdout.close()
    rows = read_rows(tmp_path / "tables" / "D0.csv")
    assert 3 <= len(told) + len(rest) <= len(rows) <= len(told) + len(rest) + 1  # printed after it is written
    done = subprocess.run([sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert read_rows(tmp_path / "tables" / "D0.csv")[: len(rows)] == rows


def test_the_page_of_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(battery_settings, "SETTINGS", (TINY,))
    battery.print_tables(["D0"], tmp_path, details=True)
    assert "0 layouts so far" in capsys.readouterr().out
    for pattern, pair in {"rFi": (2.0, 2.2), "FFi": (2.5, 2.3), "sfs": (2.2, 2.2), "rii": (2.1, 2.3)}.items():
        for seed, loss in enumerate(pair):
            origin = "interleaved" if pattern == "sfs" else "random"
            append_row(tmp_path / "D0.csv", row(pattern, loss, seed=seed, origin=origin))
    battery.print_tables(["D0"], tmp_path, details=True)
    out = capsys.readouterr().out
    assert "best so far rFi" in out and "2.1000" in out and "2.2000" in out
    with pytest.raises(KeyError, match="no setting 'D9'"):
        battery.print_tables(["D9"], tmp_path)
