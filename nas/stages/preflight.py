"""What can be known to fail before anything is written or trained."""

import re
from typing import Any

import numpy as np

from derive import Architecture
from derive.budget import Problem, solve
from derive.constraints import parse_rules
from nas.config.sections import Config
from nas.costs.costs_table import UNITS
from nas.data.corpus import Corpus
from nas.results.choice import DERIVED
from nas.stages.architectures import architectures_against, check_fits, check_span, unique_by_name
from nas.tasks.table import task_of
from supernet.blocks import candidate_cost, parse_candidate
from supernet.errors import SettingError, did_you_mean
from supernet.settings import ModelSettings


def check_run(config: Config, corpus: Corpus) -> list[Architecture]:
    """The architectures of `retrain.against`, once all that follows a search is known to fit; SettingError
    otherwise."""
    _check_retrain_names(config)
    settings = config.model.settings(corpus.vocab_size, config.data.seq_len)
    check_derivable(config, settings)
    check_span(
        {candidate.block for candidate in config.candidates(settings)}, settings, config.data, "a derived layout"
    )
    against = unique_by_name(architectures_against(config, corpus.vocab_size))
    for arch in against:
        check_fits(arch, config, corpus)
        if arch.name in DERIVED or re.match(r"(early|drawn|random)-", arch.name):
            raise SettingError(
                "retrain.against",
                f"the name {arch.name!r} is that of a derived architecture or a contender; change it in its file",
            )
    return against


def _check_retrain_names(config: Config) -> None:
    names = config.retrain.architectures
    for name in names:
        if name not in DERIVED:
            raise SettingError("retrain.architectures", f"unknown name {name!r}{did_you_mean(name, DERIVED)}")
    if len(set(names)) != len(names):
        raise SettingError("retrain.architectures", f"a name stands twice in {', '.join(names)}")
    if not names and not config.retrain.against:
        raise SettingError(
            "retrain.architectures",
            "it and retrain.against are empty, so nothing would be trained; the command search only searches",
        )


def check_derivable(config: Config, settings: ModelSettings, latency: dict[str, Any] | None = None) -> None:
    """Whether rules and budget leave a layout at all; a budget of measured time only once `latency` (latency.json) is
    there."""
    candidates = config.candidates(settings)
    by_unit = {
        unit: _costs(candidates, settings, config.data.seq_len, at)
        for at, unit in enumerate(("parameters", "flops_per_token"))
    }
    unit = UNITS[config.search.cost]
    labels = [candidate.label for candidate in candidates]
    layers, baseline = config.model.layers, task_of(config.model.task).baseline_blocks
    if unit == "ms":
        measured = latency["candidates"] if latency else {label: {"median_ms": 1.0} for label in (*labels, *baseline)}
        by_unit["ms"] = np.array([measured[label]["median_ms"] for label in labels])
        group = sum(measured[label]["median_ms"] for label in baseline)
    else:
        blocks = [parse_candidate(block, settings) for block in baseline]
        group = _costs(blocks, settings, config.data.seq_len, list(by_unit).index(unit)).sum()
    rules = parse_rules(config.derive.rules, candidates, labels, layers, by_unit)
    if unit != "ms" or latency:
        budget = config.search.budget if config.derive.budget is None else config.derive.budget
        uniform = np.full((layers, len(labels)), 1 / len(labels))
        costs = by_unit[unit] / (layers / len(baseline) * group)
        # else the cheapest layout is one; the solver takes a second to import
        if rules or (budget is not None and layers * costs.min() > budget):
            solve(Problem(uniform, costs, budget, rules))


def _costs(candidates: list[Any], settings: ModelSettings, seq_len: int, which: int) -> np.ndarray:
    return np.array([candidate_cost(candidate, settings, seq_len)[which] for candidate in candidates], dtype=np.float64)
