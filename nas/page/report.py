"""report.html: one self-contained page about a run, built from the run's files alone."""

import base64
import hashlib
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import matplotlib
import yaml
from markupsafe import Markup
from matplotlib.figure import Figure

from derive.strict_json import write_atomic
from nas.page import report_sections as sections
from nas.page.report_data import embedded_search
from nas.page.report_sections import data_uri
from nas.pictures.plots import PICTURES, render
from nas.pictures.plots_base import RC, NothingToDraw, palette_of
from nas.pictures.plots_costs import results
from nas.pictures.plots_layouts import layouts
from nas.results.run_files import Run

LARGEST_SVG = 120_000  # bytes; larger drawings go into the page as PNG


def write_report(run_folder: str | Path) -> Path:
    """Write report.html into the run folder and return its path; stages that have not run are named on the page."""
    run = Run.load(run_folder)
    path = run.folder / "report.html"
    write_atomic(path, page(run).encode("utf-8"))
    return path


def page(run: Run) -> str:
    """The page's HTML; every text from the run's files is escaped."""
    palette = palette_of(run, [label for layout in layouts(run) for label in layout.labels])
    search, thinned = embedded_search(run, palette)
    cards = sections.cards(run, palette)
    return render_template(
        "report.html.jinja",
        run=run,
        headline=sections.headline(run),
        convergence=sections.convergence(run),
        facts=sections.facts(run),
        cards=cards,
        results=results(run),
        rules=sections.rule_rows(run),
        search=search,
        warnings=sections.warnings_of(run, thinned),
        timings=sections.timings(run),
        versions=sections.versions(run),
        pictures=[picture_of(run, name) for name in PICTURES],
        legend=list(palette),
        config=yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True) if run.config else "",
    )


def render_template(name: str, **context: Any) -> str:
    """A page from `templates/`, style and script inlined; the script may run by its hash alone, nothing is fetched."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(str(files("nas.page") / "templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, duration=duration, value=readable)
    style, script = (
        (files("nas.page") / "templates" / file).read_text(encoding="utf-8") for file in ("report.css", "report.js")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        environment.get_template(name)
        .render(style=Markup(style), script=Markup(script), policy=policy, **context)
        .lstrip()
    )


def picture_of(run: Run, name: str) -> dict[str, Any]:
    """A picture for the page: title, caption, and either a data URI or the sentence that says why there is none.

    Files in plots/ that are newer than everything they show are taken as they are; else the picture is drawn.
    """
    picture = PICTURES[name]
    shown = {"name": name, "title": picture.title, "caption": picture.caption, "uri": None, "missing": None}
    paths = {kind: run.folder / "plots" / f"{name}.{kind}" for kind in ("svg", "png")}
    newest = run.newest_source()
    if all(path.exists() and path.stat().st_mtime_ns > newest for path in paths.values()):
        return {**shown, "uri": _smaller({kind: path.read_bytes for kind, path in paths.items()})}
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=picture.size(run), layout="constrained")
        try:
            picture.draw(run, figure)
        except NothingToDraw as reason:
            return {**shown, "missing": str(reason)}
    return {**shown, "uri": _smaller({kind: partial(render, figure, kind) for kind in paths})}


def _smaller(made: dict[str, Callable[[], bytes]]) -> str:
    """The SVG as a data URI, or the PNG where the SVG is large."""
    svg = made["svg"]()
    return data_uri("image/svg+xml", svg) if len(svg) <= LARGEST_SVG else data_uri("image/png", made["png"]())


def number(value: float, digits: int = 4) -> str:
    """A figure for a table: `digits` decimals below 100, thousands separated above; a dash where it is not known."""
    if value is None or value != value:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}f}"


def duration(seconds: float) -> str:
    """Seconds as `1 h 02 min`, `3 min 20 s` or `12 s`."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


def readable(value: Any) -> str:
    """A rule's value or interval: numbers to four digits, lists as `low to high` or one after the other."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return f"{value:.4g}"
    if isinstance(value, list):
        plain = len(value) == 2 and all(isinstance(one, (int, float)) for one in value)
        return " to ".join(map(readable, value)) if plain else "; ".join(map(readable, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {readable(one)}" for key, one in value.items())
    return str(value)
