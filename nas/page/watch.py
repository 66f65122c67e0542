"""`watch`: a running search followed from another terminal, through its files alone."""

import math
import shutil
import sys
import time
from pathlib import Path
from typing import TextIO

import numpy as np

from nas.pictures.palette import Palette, Style
from nas.pictures.plots_losses import finite
from nas.results.run_files import Run
from nas.results.run_readers import Search
from supernet.errors import UserError

BAR = 40  # characters of a layer's bar
QUIET_SECONDS = 2.0  # between two looks
CLEAR = "\x1b[H\x1b[2J"


def watch(run_folder: str | Path, once: bool = False, stream: TextIO | None = None) -> None:
    """Print a view of the run, again and again until the search has finished; once with `once`.

    A signal ends it as it ends every command. Colours are used on a terminal only. UserError where the folder is no
    run.
    """
    out = stream or sys.stdout
    color = out.isatty()
    while True:
        run = _load(run_folder)
        width = shutil.get_terminal_size().columns
        out.write((CLEAR if color and not once else "") + view(run, color=color, width=width, now=time.time()))
        out.flush()
        if once or finished(run):
            return
        time.sleep(QUIET_SECONDS)


def view(run: Run, *, color: bool, width: int, now: float) -> str:
    """The whole view as text: progress, losses, time left, and for each layer a bar of its probabilities."""
    lines = [f"run {run.name}"]
    for name, one in _searched(run):
        lines += [_progress(run, name, one, now), _losses(one)]
    if not run.searches:
        lines.append("No probabilities yet: they come with the first checkpoint.")
        return "\n".join(lines) + "\n"
    palette = Palette(run.candidates)
    lines += ["", _legend(palette, color)]
    many = len(run.searches) > 1
    steps = ", ".join(str(search.steps[-1]) for search in run.searches)
    lines.append(f"probabilities at step {steps}" + (f", mean of {len(run.searches)} seeds" if many else ""))
    table = run.final().mean(axis=0)
    for layer, row in enumerate(table):
        lines.append(_layer(layer, row, run.candidates, palette, color=color, width=min(BAR, max(10, width - 30))))
    return "\n".join(lines) + "\n"


def finished(run: Run) -> bool:
    """Whether every search of the run has reached its last step and left a verdict with reasons of its own."""
    total = _number(run.setting("search.steps"))
    wanted = int(_number(run.setting("search.seeds", 1)) or 1)
    return len(run.searches) >= wanted and bool(run.searches) and all(_done(search, total) for search in run.searches)


def time_left(metrics: dict[str, np.ndarray], total: float, tokens_a_step: float) -> float:
    """Seconds until step `total` at the median speed of the last ten lines; NaN where no speed has been logged."""
    there = finite(metrics, "tokens_per_second")
    if there is None or not math.isfinite(total) or not math.isfinite(tokens_a_step):
        return math.nan
    speed = float(np.median(metrics["tokens_per_second"][there][-10:]))
    return max(0.0, total - metrics["step"][-1]) * tokens_a_step / speed if speed > 0 else math.nan


def _load(folder: str | Path) -> Run:
    """The run; a file that is being replaced just now is looked at once more."""
    try:
        return Run.load(folder)
    except UserError:
        time.sleep(0.2)
        return Run.load(folder)


def _searched(run: Run) -> list[tuple[str, Run]]:
    return (
        [("search", run)]
        if run.metrics or not run.seeds
        else [(f"seed {seed}", one) for seed, one in run.seeds.items()]
    )


def _progress(run: Run, name: str, one: Run, now: float) -> str:
    total = _number(run.setting("search.steps"))
    if not one.metrics:
        return f"{name}: nothing logged yet"
    step, phase = int(one.metrics["step"][-1]), str(one.metrics.get("phase", [""])[-1])
    done = step / total if total else math.nan
    bar = "" if math.isnan(done) else f" [{_blocks(done, 20)}] {done:4.0%}"
    tokens = _number(run.setting("data.seq_len")) * _number(run.setting("data.batch_size"))
    left = time_left(one.metrics, total, tokens)
    if one.search is not None and _done(one.search, total):
        verdict = (one.search.verdict or {}).get("converged")
        return f"{name}: finished at step {step}, {'converged' if verdict else 'not converged'}"
    age = now - (one.folder / "metrics.jsonl").stat().st_mtime
    stale = f", last line {age:.0f} s ago" if age > 60 else ""
    words = f"{name}: step {step} of {total:.0f}{bar} {phase}" if total else f"{name}: step {step} {phase}"
    return words + ("" if math.isnan(left) else f", {_clock(left)} left") + stale


def _losses(one: Run) -> str:
    names = {
        "loss": "training",
        "held_out_loss": "held out",
        "derived_loss": "derived",
        "entropy": "entropy",
        "expected_cost": "expected cost",
        "temperature": "temperature",
        "tokens_per_second": "tokens/s",
    }
    told = []
    for key, words in names.items():
        there = finite(one.metrics, key)
        if there is not None:
            value = float(one.metrics[key][there][-1])
            told.append(f"{words} {value:,.0f}" if abs(value) >= 1000 else f"{words} {value:.4g}")
    return "  " + ", ".join(told)


def _layer(layer: int, row: np.ndarray, labels: list[str], palette: Palette, *, color: bool, width: int) -> str:
    """`  3 ssssssffff  s 0.61`: a character for each share of 1 / width, winners' letter and probability behind it."""
    order = [labels.index(label) for label in palette.labels]
    edges = np.rint(np.cumsum(row[order]) * width).astype(int)
    pieces, start = [], 0
    for place, edge in zip(order, edges, strict=True):
        style = palette[labels[place]]
        pieces.append(_paint(style.tag[0] * max(0, edge - start), style, color))
        start = max(start, edge)
    best = palette[labels[int(row.argmax())]]
    return f"{layer:>4} {''.join(pieces)}{' ' * max(0, width - start)} {best.tag:<2} {row.max():.2f}"


def _legend(palette: Palette, color: bool) -> str:
    return "  ".join(f"{_paint(f' {style.tag} ', style, color)} {style.label}" for style in palette)


def _paint(text: str, style: Style, color: bool) -> str:
    """The text in the block's colours by 24-bit escape codes, where colour is wanted."""
    if not color or not text:
        return text
    back, front = (";".join(str(int(one[at : at + 2], 16)) for at in (1, 3, 5)) for one in (style.color, style.ink))
    return f"\x1b[48;2;{back};38;2;{front}m{text}\x1b[0m"


def _blocks(share: float, width: int) -> str:
    full = int(min(1.0, share) * width)
    return "#" * full + "." * (width - full)


def _clock(seconds: float) -> str:
    whole = round(seconds)
    return (
        f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
        if whole >= 3600
        else f"{whole // 60}:{whole % 60:02d}"
    )


def _done(search: Search, total: float) -> bool:
    verdict = search.verdict or {}
    return bool(total) and search.steps[-1] >= total and bool(verdict.get("reasons")) and "figures" in verdict


def _number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan
