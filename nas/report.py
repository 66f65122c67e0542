"""report.html: one self-contained page about a run, built from the run's files alone."""

import base64
from pathlib import Path
from typing import Any

import jinja2
import matplotlib
import yaml
from matplotlib.figure import Figure

from derive.strict_json import write_atomic
from nas.plots import PICTURES, render
from nas.plots_base import RC, NothingToDraw
from nas.plots_costs import results
from nas.run_files import Run

LARGEST_SVG = 150_000  # bytes; larger drawings go into the page as PNG


def write_report(run_folder: str | Path) -> Path:
    """Write report.html into the run folder and return its path; stages that have not run are named on the page."""
    run = Run.load(run_folder)
    path = run.folder / "report.html"
    write_atomic(path, page(run).encode("utf-8"))
    return path


def page(run: Run) -> str:
    """The page's HTML; every text from the run's files is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("nas"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    found = results(run)
    return environment.get_template("report.html.jinja").render(
        run=run, results=found, pictures=[picture_of(run, name) for name in PICTURES],
        config=yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True),
    )  # fmt: skip


def picture_of(run: Run, name: str) -> dict[str, Any]:
    """A picture for the page: title, caption, and either a data URI or the sentence that says why there is none."""
    picture = PICTURES[name]
    shown = {"name": name, "title": picture.title, "caption": picture.caption, "uri": None, "missing": None}
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=picture.size(run), layout="constrained")
        try:
            picture.draw(run, figure)
        except NothingToDraw as reason:
            return {**shown, "missing": str(reason)}
    svg = render(figure, "svg")
    kind, data = ("svg+xml", svg) if len(svg) <= LARGEST_SVG else ("png", render(figure, "png"))
    return {**shown, "uri": f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"}
