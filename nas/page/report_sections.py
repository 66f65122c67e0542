"""What the report says in words and numbers: verdict, warnings, timings, versions, architectures, rules."""

import base64
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from derive.patterns import compress
from derive.strict_json import dumps
from nas.pictures.palette import Palette, Style
from nas.pictures.plots_costs import Result, results
from nas.pictures.plots_evidence import rules
from nas.pictures.plots_layouts import Layout, layouts
from nas.pictures.plots_losses import finite
from nas.results.choice import choose_best, from_search, sentence
from nas.results.run_files import Run
from nas.results.run_readers import read_timings
from supernet.errors import UserError

MANY_IDENTITIES = 0.5  # share of layers from which the report warns
SURE_AGREEMENT = 0.75  # share of layers in which all seeds agree, below which the report warns


@dataclass(frozen=True)
class Card:
    """An architecture for the page: its strip, how to copy and download it, and its figures where it was retrained."""

    layout: Layout
    styles: list[Style]
    short: str
    download: str | None
    result: Result | None
    overruled: list[dict[str, Any]]


def headline(run: Run) -> str:
    """The verdict in one sentence: who won where there is a comparison, else how far the search has come."""
    rows = comparable(run)
    if rows:
        return sentence(rows, choose_best(rows), derived_names(run))
    if not run.searches:
        return "Nothing has been searched or compared in this run yet."
    verdicts = [search.verdict for search in run.searches if search.verdict]
    if not verdicts:
        return "The search has left no verdict, so it is not known whether it converged."
    sure = sum(verdict.get("converged") is True for verdict in verdicts)
    untried = "no layout has been retrained yet, so it is not known whether any is good"
    if len(verdicts) > 1:
        return f"{sure} of {len(verdicts)} searches converged; {untried}."
    return f"The search {'converged' if sure else 'has not converged'}; {untried}."


def comparable(run: Run) -> list[dict[str, Any]]:
    """The comparison's rows that have a loss and a cost, with the columns that only this tool writes filled in."""
    rows = [
        row for row in run.comparison if row.get("held_out_loss") is not None and row.get("flops_per_token") is not None
    ]
    return [{"relative_flops": math.nan, "standard_error": 0.0, **row} for row in rows]


def derived_names(run: Run) -> list[str]:
    """The names of the compared architectures that came from the search, or that were asked for, not trained beside."""
    files = [name for name in run.architectures if from_search(name)]
    beside = run.setting("retrain.against", [])
    return files or [row["name"] for row in run.comparison if row["name"] not in beside]


def convergence(run: Run) -> list[dict[str, Any]]:
    """For each search its name, whether it converged, and the reasons."""
    told = []
    for search in run.searches:
        verdict = search.verdict or {"converged": None, "reasons": ["the search has left no verdict"]}
        name = f"seed {search.seed}" if len(run.searches) > 1 else "search"
        told.append(
            {
                "name": name,
                "converged": verdict.get("converged") is True,
                "reasons": [str(r) for r in verdict.get("reasons", [])],
            }
        )
    return told


def cards(run: Run, palette: Palette) -> list[Card]:
    """Every layout of the run, the best first, with its file for download where it has one."""
    found = {result.name: result for result in results(run)}
    made = []
    for layout in layouts(run):
        file = run.architectures.get("best" if layout.best else layout.name) or run.architectures.get(layout.name)
        overruled = (file or {}).get("evidence", {}).get("overruled", [])
        made.append(
            Card(
                layout=layout,
                styles=[palette[label] for label in layout.labels],
                short=shortest(layout.pattern),
                download=None if file is None else data_uri("application/json", dumps(file).encode("utf-8")),
                result=found.get(layout.name) or found.get((file or {}).get("name")),
                overruled=[
                    {key: entry.get(key, "?") for key in ("layer", "preferred", "chosen", "rule")}
                    for entry in overruled
                    if isinstance(entry, dict)
                ],
            )
        )
    return sorted(made, key=lambda card: not card.layout.best)


def shortest(pattern: str) -> str:
    """The pattern with groups such as `(sfff)x6(f)x8`; as it is where it cannot be read."""
    try:
        return compress(pattern)
    except UserError:
        return pattern


def rule_rows(run: Run) -> list[dict[str, Any]]:
    """The rules for the page's table; what a rule does not tell is None."""
    return [{key: rule.get(key) for key in ("rule", "value", "interval", "supported", "reason")} for rule in rules(run)]


def warnings_of(run: Run, thinned: str | None) -> list[str]:
    """Sentences about everything that should keep a reader from trusting the page more than its evidence."""
    said = [
        f"{one['name']}: not converged: {'; '.join(one['reasons'])}."
        for one in convergence(run)
        if not one["converged"]
    ]
    seeds = {row.get("seed") for row in run.comparison}
    if run.comparison and len(seeds) == 1:
        said.append("Each architecture was trained with one seed, so the noise of training is unknown.")
    if len(run.searches) == 1:
        said.append("One search seed: whether another seed would choose the same layers is unknown.")
    if len(run.searches) > 1:
        said += _disagreement(run)
    if run.searches:
        shares = [_identity_share(run, table) for table in run.final()]
        if max(shares) > MANY_IDENTITIES:
            said.append(
                f"identity is the most probable candidate of {max(shares):.0%} of the layers: a collapse, or fewer "
                "layers do."
            )
    weak = [str(rule["rule"]) for rule in rules(run) if rule.get("supported") is False]
    if weak:
        said.append(f"Not supported by the evidence: {', '.join(weak)}.")
    said += _lost_losses(run)
    missing = {"search": not run.searches, "derivation": not run.architectures, "retraining": not run.comparison}
    said += [
        f"The stage {stage} has not been run, or its files are not there."
        for stage, is_missing in missing.items()
        if is_missing
    ]
    return said + ([thinned] if thinned else [])


def timings(run: Run) -> list[tuple[str, float]]:
    """(what, seconds): the stages as they were timed, else as far as the logged tokens per second tell."""
    timed = read_timings(run.folder / "timings.json")
    if timed:
        return [(what, float(seconds)) for what, seconds in timed.items()]
    told = [(f"search{', ' + name if name else ''}", _seconds(run, one.metrics)) for name, one in _searched(run)]
    for architecture in dict.fromkeys(name for name, _ in run.retrained):
        spent = [_seconds(run, metrics) for (name, _), metrics in run.retrained.items() if name == architecture]
        told.append(
            (f"retraining {architecture}" + (f", {len(spent)} seeds" if len(spent) > 1 else ""), float(np.sum(spent)))
        )
    return [(what, seconds) for what, seconds in told if math.isfinite(seconds)]


def versions(run: Run) -> dict[str, str]:
    """Package -> version, as the architecture files record them."""
    found: dict[str, str] = {}
    for architecture in run.architectures.values():
        recorded = architecture.get("provenance", {}).get("versions", {})
        found.update(
            {str(name): str(version) for name, version in recorded.items()} if isinstance(recorded, dict) else {}
        )
    return found


def facts(run: Run) -> list[tuple[str, str]]:
    """What was run on what, as (name, value) pairs."""
    told = []
    if run.searches:
        search = run.searches[0]
        told.append(
            (
                "searched",
                f"{run.layers} layers x {len(search.candidates)} candidates, {search.steps[-1]:,} steps"
                + (f", {len(run.searches)} seeds" if len(run.searches) > 1 else ""),
            )
        )
    data = run.data or next((one.data for one in run.seeds.values() if one.data), None)
    if data:
        size = f", {data['bytes']:,} bytes" if isinstance(data.get("bytes"), int) else ""
        told.append(
            (
                "text",
                f"{data.get('name')}{size}, vocabulary {data.get('vocab_size')}, sha256 "
                f"{str(data.get('sha256'))[:16]}…",
            )
        )
        if data.get("name") == "enwik8":
            told.append(
                (
                    "beside published figures",
                    "every byte of enwik8 is a token here, newlines too; the token files published with "
                    "Transformer-XL drop the newlines (88,982,818 training tokens, not 90,000,000), so figures from "
                    "them are of another text",
                )
            )
    device = run.setting("run.device")
    if device:
        told.append(("device asked for", f"{device}, precision {run.setting('run.precision', 'auto')}"))
    return told


def data_uri(kind: str, content: bytes) -> str:
    """The bytes as a data URI."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def _searched(run: Run) -> list[tuple[str, Run]]:
    return [("", run)] if run.metrics else [(f"seed {seed}", one) for seed, one in run.seeds.items()]


def _seconds(run: Run, metrics: dict[str, np.ndarray]) -> float:
    """Steps between two lines times tokens a step, over the speed logged there."""
    there = finite(metrics, "tokens_per_second")
    try:
        tokens = float(run.setting("data.seq_len")) * float(run.setting("data.batch_size"))
    except (TypeError, ValueError):
        return math.nan
    if there is None:
        return math.nan
    steps, speed = metrics["step"][there], metrics["tokens_per_second"][there]
    return float(np.sum(np.diff(steps, prepend=0)[speed > 0] * tokens / speed[speed > 0]))


def _identity_share(run: Run, table: np.ndarray) -> float:
    winners = [run.candidates[place] for place in table.argmax(axis=1)]
    return float(np.mean([label.split("[")[0] == "identity" for label in winners]))


def _disagreement(run: Run) -> list[str]:
    winners = run.final().argmax(axis=2)  # [K, N]
    same = float((winners == winners[0]).all(axis=0).mean())
    return (
        [f"The seeds agree on the most probable candidate in only {same:.0%} of the layers."]
        if same < SURE_AGREEMENT
        else []
    )


def _lost_losses(run: Run) -> list[str]:
    said = []
    for name, one in _searched(run):
        column = one.metrics.get("loss")
        lost = int(np.isnan(column).sum()) if column is not None and column.dtype.kind == "f" else 0
        if lost:
            said.append(
                f"{name or 'search'}: {lost} of {len(column)} logged training losses were not finite or missing."
            )
    return said
