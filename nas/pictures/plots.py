"""Every picture of a run, by name; `draw` for one on an axes or figure, `draw_all` for files in plots/."""

import io
import warnings
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from derive.strict_json import write_atomic
from nas.pictures import plots_costs as costs
from nas.pictures import plots_evidence as evidence
from nas.pictures import plots_layouts as strips
from nas.pictures import plots_losses as losses
from nas.pictures import plots_probabilities as probabilities
from nas.pictures import plots_synthesizers as weights
from nas.pictures.plots_base import RC, NothingToDraw, Picture, Target, say
from nas.results.run_files import Run
from supernet.errors import UserError, did_you_mean

PICTURES: dict[str, Picture] = {
    picture.name: picture
    for picture in (
        Picture(
            "heat_map",
            "Final probabilities",
            "Noise-free softmax of the alphas at the last recorded step.",
            probabilities.heat_map_size,
            probabilities.draw_heat_map,
        ),
        Picture(
            "stacked",
            "Share of each candidate by depth",
            "The same probabilities as bars that add up to 1 in each layer.",
            probabilities.stacked_size,
            probabilities.draw_stacked,
        ),
        Picture(
            "trajectories",
            "How the probabilities moved",
            "One panel a layer; grey: the warm-up with frozen alphas.",
            probabilities.trajectories_size,
            probabilities.draw_trajectories,
        ),
        Picture(
            "certainty",
            "Entropy and margin",
            "Uniform: entropy ln C. A sure layer: entropy 0, margin 1.",
            probabilities.certainty_size,
            probabilities.draw_certainty,
        ),
        Picture(
            "agreement",
            "Do the seeds agree?",
            "Each seed's most probable candidate, layer by layer.",
            evidence.agreement_size,
            evidence.draw_agreement,
        ),
        Picture(
            "attention_depth",
            "Attention by depth",
            "What the rules read; the numbers at the top count expected attention-like blocks in each third of "
            "the depth.",
            evidence.attention_depth_size,
            evidence.draw_attention_depth,
        ),
        Picture(
            "expected_cost",
            "Expected cost against its target",
            "The cost of the layers, weighted with their probabilities.",
            costs.expected_cost_size,
            costs.draw_expected_cost,
        ),
        Picture(
            "losses",
            "Losses of the search",
            "The gap is what is lost by taking the most probable candidates alone.",
            losses.losses_size,
            losses.draw_losses,
        ),
        Picture(
            "layouts",
            "Layouts",
            "Derived architectures beside the hand-made ones; same colours as above.",
            strips.layouts_size,
            strips.draw_layouts,
        ),
        Picture(
            "retraining",
            "Retrained from scratch",
            "Equal steps and data; shaded: the range over seeds.",
            losses.retraining_size,
            losses.draw_retraining,
        ),
        Picture(
            "cost_against_loss",
            "Loss against cost",
            "Low and left is better.",
            costs.cost_against_loss_size,
            costs.draw_cost_against_loss,
        ),
        Picture(
            "sweep",
            "Sweep of ratio and cut",
            "Rule-built layouts trained from scratch; grey: the baseline and its noise.",
            evidence.sweep_size,
            evidence.draw_sweep,
        ),
        Picture(
            "synthesizers",
            "What the blocks learned: logit weights",
            "All weights that make a block's attention logits, after the search; as in Tay et al. 2020, figure 3.",
            weights.synthesizers_size,
            weights.draw_synthesizers,
        ),
        Picture(
            "attention_maps",
            "Attention maps that need no input",
            "Head 0, first positions: where a synthesizer looks more or less than plain averaging would.",
            weights.attention_maps_size,
            weights.draw_attention_maps,
        ),
        Picture(
            "latency",
            "Latency of each block",
            "As measured on this machine, with the mode and sizes of the title.",
            costs.latency_size,
            costs.draw_latency,
        ),
    )
}


def draw(run: Run, name: str, target: Target | None = None) -> Figure:
    """Draw the picture `name` on an axes or (sub)figure, or on a new figure, which is returned.

    Where there is nothing to show the picture is a sentence that says why. UserError for an unknown name.
    """
    if name not in PICTURES:
        raise UserError(f"picture {name!r}: unknown{did_you_mean(name, PICTURES)}")
    picture = PICTURES[name]
    with matplotlib.rc_context(RC):
        target = target or Figure(figsize=picture.size(run), layout="constrained")
        try:
            picture.draw(run, target)
        except NothingToDraw as reason:
            axes = target if isinstance(target, Axes) else target.add_subplot()
            axes.set_title(picture.title)
            say(axes, str(reason))
    return target.figure if isinstance(target, Axes) else target


def draw_all(run_folder: str | Path) -> list[Path]:
    """Write every picture that the run has data for to plots/NAME.png and .svg, byte-identical for equal files.

    Pictures left from an earlier drawing for which the run has no data are removed. Returns the paths written.
    """
    run = Run.load(run_folder)
    written = []
    for name, picture in PICTURES.items():
        paths = [run.folder / "plots" / f"{name}.{kind}" for kind in ("png", "svg")]
        with matplotlib.rc_context(RC):
            figure = Figure(figsize=picture.size(run), layout="constrained")
            try:
                picture.draw(run, figure)
            except NothingToDraw:
                for path in paths:
                    path.unlink(missing_ok=True)
                continue
            for path in paths:
                write_atomic(path, render(figure, path.suffix[1:]))
                figure.set_layout_engine("none")  # the first rendering has placed everything
        written += paths
    return written


def render(figure: Figure, kind: str) -> bytes:
    """The figure as PNG or SVG bytes without date or program version."""
    buffer = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    with matplotlib.rc_context(RC), warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*onstrained_layout not applied.*")
        # a name in another script shows as boxes
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format=kind, metadata=metadata)
    return buffer.getvalue()


def draw_live(run_folder: str | Path) -> Path:
    """Write plots/live.png, the heat map so far above the losses so far, and return its path; for a search that still
    runs."""
    run = Run.load(run_folder)
    with matplotlib.rc_context(RC):
        sizes = [PICTURES[name].size(run) for name in ("heat_map", "losses")]
        figure = Figure(figsize=(max(size[0] for size in sizes), sum(size[1] for size in sizes)), layout="constrained")
        parts = figure.subfigures(2, 1, height_ratios=[size[1] for size in sizes])
        for part, name in zip(parts, ("heat_map", "losses"), strict=True):
            draw(run, name, part)
        path = run.folder / "plots" / "live.png"
        write_atomic(path, render(figure, "png"))
    return path
