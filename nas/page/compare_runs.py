"""Several runs on one page: probabilities, agreement layer by layer, costs, best layouts, and the settings that
differ."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from derive.strict_json import write_atomic
from nas.page.report import picture_of, render_template
from nas.page.report_sections import Card, cards, convergence
from nas.pictures.palette import Palette, Style
from nas.pictures.plots_base import palette_of
from nas.pictures.plots_costs import Result, results
from nas.pictures.plots_layouts import layouts
from nas.results.run_files import Run
from supernet.errors import UserError

PICTURES_SHOWN = ("heat_map", "attention_depth", "cost_against_loss")
NOT_SETTINGS = ("run.dir", "run.resume")  # they differ between any two runs and change no result


@dataclass(frozen=True)
class Entry:
    """One run on the page: its own name, its cards with the best first, its verdicts, pictures and figures."""

    name: str
    run: Run
    best: Card | None
    cards: list[Card]
    verdicts: list[dict[str, Any]]
    winners: list[Style]
    pictures: list[dict[str, Any]]
    best_result: Result | None
    baseline: Result | None
    expected_cost: float | None


def write_comparison_page(folders: Sequence[str | Path], out: str | Path) -> Path:
    """Write a page that sets the runs side by side to `out` and return its path. UserError for fewer than two runs."""
    if len(folders) < 2:
        raise UserError(f"compare: expected two or more runs, got {len(folders)}")
    runs = [Run.load(folder) for folder in folders]
    palette = Palette(
        [
            label
            for run in runs
            for label in (*palette_of(run).labels, *(one for layout in layouts(run) for one in layout.labels))
        ]
    )
    entries = [_entry(name, run, palette) for name, run in zip(_names(folders), runs, strict=True)]
    html = render_template(
        "compare.html.jinja",
        entries=entries,
        agreement=agreement(runs),
        settings=differing_settings(entries),
        warnings=_warnings(entries),
        legend=list(palette),
        depth=max((len(one.winners) for one in entries), default=0),
    )
    path = Path(out)
    write_atomic(path, html.encode("utf-8"))
    return path


def agreement(runs: Sequence[Run]) -> list[float] | None:
    """For each layer the share of all the runs' searches that agree on its most probable candidate; None where they
    cannot be compared: fewer than two searches, or other depths.
    """
    winners = [
        [run.candidates[place] for place in table.argmax(axis=1)]
        for run in runs
        if run.searches
        for table in run.final()
    ]
    if len(winners) < 2 or len({len(one) for one in winners}) > 1:
        return None
    return [
        max(column.count(label) for label in column) / len(column) for column in map(list, zip(*winners, strict=True))
    ]


def differing_settings(entries: Sequence[Entry]) -> list[tuple[str, list[str]]]:
    """(key, the value in each run) for every setting that is not the same in all."""
    flat = [_flat(entry.run.config) for entry in entries]
    keys = sorted({key for one in flat for key in one})
    rows = [(key, [_shown(one, key) for one in flat]) for key in keys if key not in NOT_SETTINGS]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def _entry(name: str, run: Run, palette: Palette) -> Entry:
    made = cards(run, palette)
    found = {one.name: one for one in results(run)}
    best = made[0] if made and made[0].layout.best else None
    table = run.final().mean(axis=0) if run.searches else np.zeros((0, 1))
    search = run.searches[0] if run.searches else None
    cost = None if search is None else float(search.expected_cost()[-1]) / search.interleaved_cost()
    return Entry(
        name=name,
        run=run,
        best=best,
        cards=made,
        verdicts=convergence(run),
        winners=[palette[run.candidates[place]] for place in table.argmax(axis=1)] if run.searches else [],
        pictures=[picture_of(run, picture) for picture in PICTURES_SHOWN],
        best_result=best.result if best else None,
        baseline=found.get("interleaved"),
        expected_cost=None if cost is None or not math.isfinite(cost) else cost,
    )


def _names(folders: Sequence[str | Path]) -> list[str]:
    """The folders' own names, or the paths as given where two are the same."""
    names = [Path(folder).resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def _warnings(entries: Sequence[Entry]) -> list[str]:
    said = []
    texts = {
        str((entry.run.data or next((s.data for s in entry.run.seeds.values() if s.data), {})).get("sha256"))
        for entry in entries
    }
    if len(texts) > 1:
        said.append("The runs were made on different texts, so their losses cannot be set against each other.")
    if len({len(entry.winners) for entry in entries if entry.winners}) > 1:
        said.append("The runs have different numbers of layers, so they are not compared layer by layer.")
    steps = {row.get("steps") for entry in entries for row in entry.run.comparison}
    if len(steps) > 1:
        said.append("The architectures were retrained for different numbers of steps.")
    return said + [
        f"{entry.name}: nothing has been searched in this run." for entry in entries if not entry.run.searches
    ]


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    return {
        f"{section}.{key}": value
        for section, values in config.items()
        for key, value in (values.items() if isinstance(values, dict) else [("", values)])
    }


def _shown(settings: dict[str, Any], key: str) -> str:
    if key not in settings:
        return "–"
    value = settings[key]
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
