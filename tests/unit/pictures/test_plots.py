"""What the pictures show: the data in the artists equal the files, words do not overlap, files are the same every
time."""

import dataclasses
import math
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from made_runs import add_checkpoint, add_sweep, build_run
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from overlaps import misplaced_words

from derive.strict_json import read_json, write_json
from nas.api import Run
from nas.pictures.palette import COLORS
from nas.pictures.plots import PICTURES, draw, draw_all, draw_live
from nas.pictures.plots_base import RC, palette_of, thin, wrap
from nas.pictures.plots_costs import interval, pareto, results
from nas.pictures.plots_layouts import layouts
from nas.pictures.plots_losses import smooth
from supernet.errors import UserError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build_run(tmp_path_factory.mktemp("runs") / "one", layers=6, candidates=5, steps=12)


@pytest.fixture(scope="module")
def run(folder):
    return Run.load(folder)


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    return Run.load(build_run(tmp_path_factory.mktemp("runs") / "parent", layers=6, candidates=5, steps=12, seeds=3))


def words(axes):
    return [text.get_text() for text in axes.texts]


def line(axes, label):
    return next(one for one in axes.get_lines() if one.get_label() == label)


# ---- legibility


@pytest.mark.parametrize(("layers", "candidates", "seeds"), [(1, 2, 1), (4, 12, 3), (12, 9, 1), (64, 12, 1)])
def test_no_words_overlap_or_are_cut_off(tmp_path, layers, candidates, seeds):
    folder = build_run(
        tmp_path / "run", layers=layers, candidates=candidates, steps=6, seeds=seeds, retrain_seeds=seeds
    )
    if layers in (4, 12):
        add_checkpoint(folder if seeds == 1 else folder / "seed-0", layers, candidates)
        add_sweep(folder)
    run = Run.load(folder)
    with matplotlib.rc_context(RC):
        found = {name: misplaced_words(draw(run, name)) for name in PICTURES}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_the_check_for_overlaps_finds_them():
    figure = Figure()
    axes = figure.add_subplot()
    axes.text(0.5, 0.5, "one", transform=axes.transAxes)
    axes.text(0.5, 0.5, "two", transform=axes.transAxes)
    axes.text(1.2, 0.5, "far to the right", transform=axes.transAxes)
    found = misplaced_words(figure)
    assert "'one' overlaps 'two'" in found and "'far to the right' is cut off" in found


@pytest.mark.parametrize("name", PICTURES)
def test_every_axes_with_data_is_labelled(run, parent, name):
    for one in (run, parent):
        for axes in draw(one, name).axes:
            marks = [*axes.get_lines(), *axes.patches, *axes.images, *axes.collections]
            if marks and axes.axison and axes.get_label() != "<colorbar>":
                neighbours = [other for other in axes.figure.axes if other.get_xlabel() or other.get_title(loc="left")]
                assert neighbours, name


# ---- what is shown


def test_heat_map_shows_the_last_probabilities_in_the_palettes_order(run):
    axes = draw(run, "heat_map").axes[0]
    palette = palette_of(run)
    order = [run.candidates.index(label) for label in palette.labels if label in run.candidates]
    assert np.array_equal(axes.collections[0].get_array(), run.search.final[:, order].T)
    outlined = {
        (round(p.get_x() + 0.5), round(p.get_y() + 0.5))
        for p in axes.patches
        if isinstance(p, Rectangle) and not p.get_fill()
    }
    assert outlined == {(layer, row) for layer, row in enumerate(run.search.final[:, order].argmax(axis=1))}
    assert f"{run.search.final[2, order[1]]:.2f}"[1:] == words(axes)[1 * 6 + 2]
    assert [label.get_text().split()[0] for label in axes.get_yticklabels()] == [run.candidates[k] for k in order]


def test_heat_map_of_seeds_shows_mean_and_deviation(parent):
    mean, spread = (axes.collections[0].get_array() for axes in draw(parent, "heat_map").axes[:2])
    order = [parent.candidates.index(label) for label in palette_of(parent).labels if label in parent.candidates]
    assert np.allclose(mean, parent.final().mean(axis=0)[:, order].T)
    assert np.allclose(spread, parent.final().std(axis=0, ddof=1)[:, order].T)


def test_stacked_bars_add_up_to_one_and_show_each_seed(parent):
    axes = draw(parent, "stacked").axes[0]
    bars = [patch for container in axes.containers for patch in container]
    assert len(bars) == 3 * 6 * 5
    by_label = {
        container.get_label(): container for container in axes.containers if not container.get_label().startswith("_")
    }
    for place, label in enumerate(parent.candidates):
        assert np.allclose([bar.get_height() for bar in by_label[label]], parent.final()[0][:, place])
        assert to_hex(by_label[label][0].get_facecolor()).upper() == COLORS[label]
    tops = {round(bar.get_x(), 6): 0.0 for bar in bars}
    for bar in bars:
        tops[round(bar.get_x(), 6)] = max(tops[round(bar.get_x(), 6)], bar.get_y() + bar.get_height())
    assert len(tops) == 18 and np.allclose(list(tops.values()), 1)


def test_sampled_layouts_show_no_temperature_that_was_not_used(run):
    sampled = dataclasses.replace(
        run, config={**run.config, "search": {**run.config.get("search", {}), "relaxation": "sampled"}}
    )
    temperature, *panels = draw(sampled, "trajectories").axes
    assert not temperature.get_lines() and "temperature 1 throughout" in temperature.texts[0].get_text().replace(
        "\n", " "
    )
    assert len(panels) == 6


def test_trajectories_have_a_panel_a_layer_with_the_recorded_lines(run):
    temperature, *panels = draw(run, "trajectories").axes
    assert np.array_equal(temperature.get_lines()[0].get_ydata(), run.metrics["temperature"])
    assert len(panels) == 6
    for layer, axes in enumerate(panels):
        for place, label in enumerate(run.candidates):
            assert np.array_equal(line(axes, label).get_ydata(), run.search.probabilities[:, layer, place])
            assert np.array_equal(line(axes, label).get_xdata(), run.search.steps)
            assert line(axes, label).get_color().upper() == COLORS[label]
        assert axes.get_title(loc="left").startswith(f"{layer}: ")
        assert axes.patches[0].get_width() == 20  # the warm-up: steps 0, 10, 20


def test_certainty_shows_entropy_margin_and_the_winners(run):
    entropy, margin, final = draw(run, "certainty").axes
    assert np.allclose(entropy.get_lines()[0].get_ydata(), run.search.entropy().mean(axis=1))
    assert np.allclose(margin.get_lines()[0].get_ydata(), run.search.margin().mean(axis=1))
    assert np.allclose([bar.get_height() for bar in final.patches], run.search.margin()[-1])
    winners = [run.candidates[place] for place in run.search.final.argmax(axis=1)]
    assert [to_hex(bar.get_facecolor()).upper() for bar in final.patches] == [COLORS[label] for label in winners]


def test_expected_cost_is_relative_to_interleaved_and_shows_the_target(run):
    axes = draw(run, "expected_cost").axes[0]
    shown = line(axes, "expected, from the probabilities").get_ydata()
    assert np.allclose(shown, run.search.expected_cost() / run.search.interleaved_cost())
    assert np.allclose(shown, run.metrics["expected_cost"], rtol=1e-3)
    assert line(axes, "target 0.65").get_ydata()[0] == 0.65


def test_losses_show_both_nets_and_the_last_gap(run):
    axes = draw(run, "losses").axes[0]
    there = np.isfinite(run.metrics["held_out_loss"])
    assert np.array_equal(line(axes, "supernet, held out").get_ydata(), run.metrics["held_out_loss"][there])
    derived = np.isfinite(run.metrics["derived_loss"])
    shown = line(axes, "derived net, inherited weights, held out")
    assert np.array_equal(shown.get_ydata(), run.metrics["derived_loss"][derived])
    gap = run.metrics["derived_loss"][-1] - run.metrics["held_out_loss"][-1]
    assert axes.get_title(loc="right") == f"last gap {gap:+.3f}"


def test_attention_by_depth_stacks_the_kinds_and_marks_the_cut(run):
    axes = draw(run, "attention_depth").axes[0]
    places = [run.candidates.index(label) for label in ("self_attention", "random_synthesizer", "dense_synthesizer")]
    mass = run.search.final[:, places].sum(axis=1)
    tops = np.zeros(6)
    for bar in (patch for container in axes.containers for patch in container):
        layer = round(bar.get_x() + bar.get_width() / 2)
        tops[layer] = max(tops[layer], bar.get_y() + bar.get_height())
    assert np.allclose(tops, mass)
    assert words(axes)[0] == f"{mass[:2].sum():.1f} of 2"
    cut = next(rule for rule in run.architectures["par-rule"]["evidence"]["rules"] if rule["rule"] == "cut")
    borders = [one.get_xdata()[0] for one in axes.get_lines() if one.get_color() == "#B03009"]
    assert borders == [edge - 0.5 for edge in cut["region"] if 0 < edge < 6]
    assert cut["reason"].split()[0] in axes.get_xlabel()


def test_layouts_show_derived_beside_baselines_in_the_blocks_colours(run):
    found = layouts(run)
    assert [one.name for one in found] == ["argmax", "par-rule", "budget", "interleaved", "par"]
    assert [one.name for one in found if one.best] == [run.architectures["best"]["name"]]
    rows = {row["name"]: row for row in run.comparison}
    axes = draw(run, "layouts").axes[0]
    cells = {
        (round(c.get_x() + 0.47), round(c.get_y() + 0.33)): to_hex(c.get_facecolor()).upper() for c in axes.patches
    }
    for row, one in enumerate(found):
        assert one.pattern == rows[one.name]["pattern"]
        assert math.isclose(one.relative_cost, rows[one.name]["relative_flops"])
        assert [cells[layer, row] for layer in range(6)] == [COLORS[label] for label in one.labels]
    marked = [(mark.get_xdata()[0], round(mark.get_ydata()[0] + 0.43)) for mark in axes.get_lines()]
    assert marked == [(layer, row) for row, one in enumerate(found) for layer in sorted(one.overruled)] and marked


def test_baselines_are_shown_before_anything_is_compared(tmp_path):
    run = Run.load(build_run(tmp_path / "run", layers=10, stages=("search",)))
    assert {one.name: one.pattern for one in layouts(run)} == {"interleaved": "sfsfsfsfsf", "par": "sffsffffff"}


def test_cost_against_loss_shows_means_intervals_and_the_front(run):
    found = results(run)
    for one in found:
        losses = [row["held_out_loss"] for row in run.comparison if row["name"] == one.name]
        assert math.isclose(one.loss, np.mean(losses)) and one.seeds == 2
        assert math.isclose(one.half_width, 12.706204736 * np.std(losses, ddof=1) / math.sqrt(2), rel_tol=1e-6)
    figure = draw(run, "cost_against_loss")
    flops, time = figure.axes
    assert flops.get_xlabel() == "kFLOPs a token" and time.get_xlabel() == "measured forward pass (ms)"
    points = {box.get_label().split("  ")[0]: box.lines[0].get_xydata()[0] for box in flops.containers}
    for one in found:
        assert np.allclose(points[one.name], (one.flops / 1e3, one.loss))
    assert len(time.containers) == len(found)
    front = pareto(found, "flops")
    assert np.allclose(flops.get_lines()[0].get_ydata(), [one.loss for one in front])
    beaten = [
        one
        for one in found
        if any(
            (o.flops <= one.flops and o.loss < one.loss) or (o.flops < one.flops and o.loss <= one.loss) for o in found
        )
    ]
    assert {one.name for one in front} == {one.name for one in found} - {one.name for one in beaten}


def test_one_seed_has_the_evaluations_noise_for_a_bar(tmp_path):
    run = Run.load(build_run(tmp_path / "run", retrain_seeds=1))
    assert math.isclose(results(run)[0].half_width, 1.96 * 0.004)
    assert math.isnan(interval(np.array([1.0])))


def test_retraining_shows_the_mean_over_seeds_best_first(run):
    axes = draw(run, "retraining").axes[0]
    lines = [one for one in axes.get_lines()]
    ends = [one.get_ydata()[-1] for one in lines]
    assert ends == sorted(ends) and len(lines) == 5
    first = lines[0].get_label().split("  ")[0]
    seeds = [run.retrained[first, seed]["held_out_loss"] for seed in (0, 1)]
    assert np.allclose(lines[0].get_ydata(), np.mean(seeds, axis=0)[np.isfinite(seeds[0])])


def test_agreement_shows_each_seeds_winner_and_the_share(parent):
    strips, shares = draw(parent, "agreement").axes
    told = parent.agreement["layers"]
    assert np.allclose([bar.get_height() for bar in shares.patches], [row["agree"] for row in told])
    palette = palette_of(parent)
    letters = [palette[row["argmax"][seed]].tag for seed in range(3) for row in told]
    assert words(strips) == letters


def test_the_sweep_shows_a_line_a_cut_the_band_and_the_choice(tmp_path):
    folder = build_run(tmp_path / "run", stages=())
    add_sweep(folder)
    axes = draw(Run.load(folder), "sweep").axes[0]
    lines = {box.get_label(): box.lines[0] for box in axes.containers}
    assert lines["cut 0.5"].get_xdata().tolist() == [2, 3, 5, 8]
    assert np.allclose(lines["cut 0.667"].get_ydata(), [2.0 + 0.02 * ratio - 0.00667 for ratio in (2, 3, 5, 8)])
    chosen = line(axes, "largest within the band: 3")
    assert chosen.get_xdata()[0] == 3 and chosen.get_ydata()[0] == pytest.approx(2.055)
    band = axes.patches[0].get_extents().transformed(axes.transData.inverted())
    assert (band.y0, band.y1) == (pytest.approx(2.024), pytest.approx(2.056))


def test_latency_shows_the_measured_medians(run):
    axes = draw(run, "latency").axes[0]
    table = run.latency["candidates"]
    order = [label for label in palette_of(run).labels if label in table]
    assert [bar.get_width() for bar in axes.patches] == [table[label]["median_ms"] for label in order]
    assert "device cpu" in axes.get_title(loc="left").replace("\n", " ")


def test_weights_of_the_checkpoint_are_shown_by_kind_and_layer(tmp_path):
    import torch

    folder = build_run(tmp_path / "run", layers=3, candidates=6, steps=4, stages=("search",))
    add_checkpoint(folder, 3, 6)
    run = Run.load(folder)
    panels = [axes for axes in draw(run, "synthesizers").axes if axes.axison]
    names = [axes.get_title(loc="left").split(",")[0].split("  ")[1] for axes in panels]
    assert names == ["self_attention", "dense_synthesizer", "random_synthesizer", "fixed_random_synthesizer"]
    state = torch.load(folder / "checkpoint.pt", weights_only=True)["model"]
    place = run.candidates.index("random_synthesizer")
    weights = state[f"layers.1.candidates.{place}.block.logits.map"].numpy()
    edges = panels[2].patches[1].get_data().edges
    assert np.allclose(panels[2].patches[1].get_data().values, np.histogram(weights, bins=edges, density=True)[0])
    images = [axes for axes in draw(run, "attention_maps").axes if axes.images]
    assert len(images) == 2 * 3
    logits = weights[0, :48, :48].astype(float)
    row = np.exp(logits[7, :8]) / np.exp(logits[7, :8]).sum()
    assert np.allclose(images[1].images[0].get_array()[7, :8], np.log2(row * 8))
    assert images[1].images[0].get_array().mask[7, 8]  # causal: the future is hidden


# ---- files and calls


def test_files_are_the_same_bytes_every_time_and_bear_no_date(tmp_path):
    folder = build_run(tmp_path / "run", layers=2, candidates=2, steps=3, retrain_seeds=1)
    names = {path.name for path in draw_all(folder)}
    assert {
        f"{name}.{kind}" for name in ("heat_map", "trajectories", "layouts", "losses") for kind in ("png", "svg")
    } <= names
    first = {path.name: path.read_bytes() for path in (folder / "plots").iterdir()}
    assert {path.name: path.read_bytes() for path in draw_all(folder)} == first == {name: first[name] for name in names}
    assert first["heat_map.png"][:8] == b"\x89PNG\r\n\x1a\n" and b"<dc:date>" not in first["heat_map.svg"]


def test_a_picture_without_data_is_removed_and_says_why_when_asked_for(tmp_path):
    folder = build_run(tmp_path / "run", layers=2, candidates=2, stages=())
    (folder / "plots").mkdir()
    (folder / "plots" / "cost_against_loss.png").write_bytes(b"old")
    assert "cost_against_loss.png" not in {path.name for path in draw_all(folder)}
    assert not (folder / "plots" / "cost_against_loss.png").exists()
    assert "No architecture has been retrained" in words(draw(Run.load(folder), "cost_against_loss").axes[0])[
        0
    ].replace("\n", " ")


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_goes_onto_an_axes_of_a_notebook_with_or_without_data(run, tmp_path, name):
    empty = Run.load(build_run(tmp_path / "run", stages=()))
    for one in (run, empty):
        figure = Figure()
        axes = figure.add_subplot()
        assert one.draw(name, axes) is figure
        figure.draw_without_rendering()
    assert words(axes), "an empty panel needs a sentence"


def test_an_unknown_picture_is_refused(run):
    with pytest.raises(UserError, match="did you mean 'heat_map'"):
        run.draw("heatmap")


def test_live_shows_a_search_that_is_still_running(tmp_path):
    folder = build_run(tmp_path / "run", steps=4, stages=("search",))
    assert draw_live(folder).read_bytes()[:4] == b"\x89PNG"
    (folder / "probabilities.json").unlink()
    assert draw_live(folder) == folder / "plots" / "live.png"


def test_null_metrics_leave_gaps_not_errors(tmp_path):
    folder = build_run(tmp_path / "run", steps=4, stages=("search",))
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": null, "temperature": null}\n{"step": 2, "loss": null}\n')
    run = Run.load(folder)
    assert "No loss of the search" in words(run.draw("losses").axes[0])[0].replace("\n", " ")
    assert "uses none" in words(run.draw("trajectories").axes[0])[0].replace("\n", " ")


def test_costs_that_are_not_known_are_said_to_be(tmp_path):
    folder = build_run(tmp_path / "run", steps=4, stages=("search",))
    content = read_json(folder / "probabilities.json")
    del content["cost"]
    write_json(folder / "probabilities.json", content)
    assert "gives no cost" in words(draw(Run.load(folder), "expected_cost").axes[0])[0].replace("\n", " ")


def test_drawing_needs_neither_pyplot_nor_torch(folder):
    code = (
        "import sys, nas; from nas.pictures.plots import draw; draw(nas.Run.load(sys.argv[1]), "
        "'heat_map');"
        "print(*(name for name in ('torch', 'matplotlib.pyplot') if name in sys.modules))"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], cwd=root, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_small_helpers():
    assert thin(1000, 5).tolist() == [0, 250, 500, 749, 999] and thin(3, 5).tolist() == [0, 1, 2]
    assert wrap("one two three", 7) == "one two\nthree"
    assert smooth(np.array([1.0, 2.0, 3.0, 4.0]), 2).tolist() == [1.0, 1.5, 2.5, 3.5]
