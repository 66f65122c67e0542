"""How long derivation takes: python benchmarks/derive_speed.py

A layout of 32 layers from 9 candidates under a budget and ten rules; a front of 50 points; and a fresh process that
derives from the files of a run, with whether it loaded torch. Prints medians of five with the extremes.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from derive.budget import Problem, front, solve
from derive.constraints import parse_rules
from supernet.blocks import BLOCKS, candidate_cost, parse_candidate
from supernet.settings import ModelSettings

LAYERS = 32
RULES = [
    {"block": "attention", "only_in": [0.0, 0.667]},
    {"block": "attention", "at_least": 4},
    {"block": "attention", "at_most": 14},
    {"block": "identity", "at_most": 8},
    {"block": "identity", "longest_run": 2},
    {"block": "feed_forward", "at_least": 10},
    {"block": "feed_forward", "longest_run": 6},
    {"block": ["random_synthesizer", "fixed_random_synthesizer"], "at_most": 4},
    {"block": "self_attention", "exactly": 3},
    {"block": "mixture_synthesizer", "at_most": 1, "layers": [0, 8]},
]
FRESH = """
import sys
from derive import derive_architectures
print(len(derive_architectures(sys.argv[1])), "torch" in sys.modules)
"""


def large_problem(seed: int) -> Problem:
    """Random probabilities with the true costs of the nine built-in blocks at width 512."""
    settings = ModelSettings(d_model=512, heads=8, d_inner=2048, max_len=192)
    candidates = [parse_candidate(name, settings) for name in BLOCKS]
    labels = [candidate.label for candidate in candidates]
    costs = np.array([candidate_cost(candidate, settings, 192)[1] for candidate in candidates], dtype=float)
    baseline = LAYERS / 2 * (costs[labels.index("self_attention")] + costs[labels.index("feed_forward")])
    probabilities = np.random.default_rng(seed).dirichlet(np.ones(len(labels)), size=LAYERS)
    rules = parse_rules(RULES, candidates, labels, LAYERS, {"flops_per_token": costs})
    return Problem(probabilities, costs / baseline, 0.65, rules)


def timed(call: Callable[[int], object], runs: int = 5) -> str:
    """Median seconds with the extremes."""
    seconds = []
    for run in range(runs):
        started = time.perf_counter()
        call(run)
        seconds.append(time.perf_counter() - started)
    return f"median {statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"


def main() -> None:
    """Print the three figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", help="run folder for the fresh process")
    options = parser.parse_args()
    solve(large_problem(99))  # scipy's import is not the programme's time
    print(
        f"{LAYERS} layers, {len(BLOCKS)} candidates, budget and {len(RULES)} rules: "
        f"{timed(lambda run: solve(large_problem(run)))}"
    )
    print(f"front of 50 points: {timed(lambda run: front(large_problem(run).without_budget(), 50), 3)}")
    if options.run:
        outputs = []
        text = timed(
            lambda run: outputs.append(
                subprocess.run(
                    [sys.executable, "-c", FRESH, options.run], check=True, capture_output=True, text=True
                ).stdout.strip()
            )
        )
        print(f"derive in a fresh process: {text}; architectures, torch loaded: {outputs[-1]}")


if __name__ == "__main__":
    main()
