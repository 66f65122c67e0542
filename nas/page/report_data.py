"""The search's record as the page's script reads it: small, exact to 1/65535, and safe inside HTML."""

import base64
import math
from typing import Any

import numpy as np

from nas.pictures.palette import Palette, luminance
from nas.pictures.plots_base import runs_of, thin, warm_up_end
from nas.results.run_files import Run

MOST_VALUES = 900_000  # of all searches together; two bytes each, a third more in base64


def embedded_search(run: Run, palette: Palette) -> tuple[dict[str, Any] | None, str | None]:
    """The page's data and, where steps had to be left out, a sentence that says so. (None, None) without a search."""
    if not run.searches:
        return None, None
    labels = [label for label in palette.labels if label in run.candidates]
    columns = [run.candidates.index(label) for label in labels]
    recorded = max(len(search.steps) for search in run.searches)
    at_most = max(2, MOST_VALUES // (len(run.searches) * run.layers * len(labels)))
    searches = []
    for search, (name, home) in zip(run.searches, _homes(run), strict=True):
        picked = thin(len(search.steps), at_most)
        table = search.probabilities[picked][:, :, columns]
        values = np.rint(table * 65535).astype("<u2").tobytes()
        searches.append(
            {
                "name": name or "search",
                "steps": search.steps[picked].tolist(),
                "warmup": warm_up_end(home, home.metrics),
                "values": base64.b64encode(values).decode("ascii"),
            }
        )
    first = run.searches[0]
    costs = {
        label: float(cost) for label, cost in zip(first.candidates, first.costs, strict=True) if math.isfinite(cost)
    }
    data = {
        "layers": run.layers,
        "searches": searches,
        "unit": {"flops_per_token": "FLOPs a token"}.get(first.cost_unit, first.cost_unit),
        "candidates": [_candidate(palette, label, costs.get(label)) for label in labels],
    }
    return data, _thinned(recorded, at_most)


def _homes(run: Run) -> list[tuple[str, Run]]:
    """Names and folders in the order of `run.searches`."""
    return [(name, home) for name, home in runs_of(run) if home.search is not None]


def _candidate(palette: Palette, label: str, cost: float | None) -> dict[str, Any]:
    style = palette[label]
    return {
        "label": label,
        "tag": style.tag,
        "color": style.color,
        "ink": style.ink,
        "light": luminance(style.color) > 0.55,
        "dashes": " ".join(f"{2 * length:g}" for length in style.dashes) or "none",
        "cost": cost,
    }


def _thinned(recorded: int, at_most: int) -> str | None:
    if recorded <= at_most:
        return None
    return (
        f"To keep this page small it carries {at_most} of the {recorded} recorded steps, evenly spread, the first "
        "and the "
        "last among them; probabilities.json has them all."
    )
