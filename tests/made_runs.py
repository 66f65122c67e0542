"""Builds run folders of any size that conform to the contract, for tests of pictures, report and reading."""

import shutil
from pathlib import Path

import numpy as np
import yaml

from derive import Architecture, derive_architectures
from derive.strict_json import dumps_line, write_json
from nas.results.run_readers import read_probabilities
from supernet.blocks import BLOCKS, candidate_cost, parse_candidate
from supernet.settings import ModelSettings

LABELS = [*BLOCKS, "self_attention[heads=2]", "factorized_random_synthesizer[rank=4]", "feed_forward[d_inner=256]"]
SETTINGS = ModelSettings(d_inner=128)
STAGES = ("search", "derive", "retrain", "latency")


def labels(count: int) -> list[str]:
    """`count` candidates' labels, 2 to 12, deliberately not in the palette's order."""
    first = ["feed_forward", "self_attention", "identity", "random_synthesizer"]
    return (first + [label for label in LABELS if label not in first])[:count]


def build_run(
    folder: Path,
    *,
    layers: int = 6,
    candidates: int = 4,
    steps: int = 20,
    seeds: int = 1,
    retrain_seeds: int = 2,
    stages: tuple[str, ...] = STAGES,
    rng_seed: int = 0,
) -> Path:
    """Write a run folder: attention wins early, feed-forward late; `steps` recorded entries, the first quarter
    warm-up."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    names = labels(candidates)
    _write_config(folder, layers, names, steps, seeds, retrain_seeds)
    if "search" in stages:
        homes = [folder] if seeds == 1 else [folder / f"seed-{seed}" for seed in range(seeds)]
        for seed, home in enumerate(homes):
            home.mkdir(exist_ok=True)
            if seeds > 1:
                _write_config(home, layers, names, steps, 1, retrain_seeds)
            _write_search(home, layers, names, steps, np.random.default_rng([rng_seed, seed]), seed)
        if seeds > 1:
            _write_agreement(folder, homes)
    derived = derive_architectures(folder) if "derive" in stages else {}
    for name, arch in derived.items():
        arch.save(folder / "architectures" / f"{name}.json")
    if "latency" in stages:
        _write_latency(folder, names)
    if "retrain" in stages:
        _write_comparison(folder, derived, layers, retrain_seeds, np.random.default_rng(rng_seed))
    return folder


def planted(layers: int, names: list[str], steps: int, rng: np.random.Generator) -> np.ndarray:
    """Probabilities [steps, layers, candidates] that move from uniform to attention early and feed-forward late."""
    depth = np.linspace(0, 1, layers)
    goal = rng.normal(0, 0.6, (layers, len(names)))
    for place, name in enumerate(names):
        goal[:, place] += {"self_attention": 3 - 5 * depth, "feed_forward": 1.5 + 1.5 * depth, "identity": depth}.get(
            name, 0 * depth
        )
    time = np.clip((np.arange(steps) / max(1, steps - 1) - 0.25) / 0.75, 0, 1)[:, None, None]
    logits = time * goal + 0.15 * np.sqrt(time) * rng.normal(size=(steps, layers, len(names)))
    table = np.exp(logits - logits.max(axis=2, keepdims=True))
    return table / table.sum(axis=2, keepdims=True)


def _write_config(folder: Path, layers: int, names: list[str], steps: int, seeds: int, retrain_seeds: int) -> None:
    config = {
        "run": {"dir": folder.name, "seed": 0, "device": "cpu", "precision": "fp32"},
        "data": {"name": "sotu", "path": None, "tokens": "bytes", "seq_len": 128, "batch_size": 16},
        "model": {"task": "causal_lm", "layers": layers, "d_model": 128, "heads": 4, "d_inner": 128, "max_len": 128},
        "search": {
            "blocks": names,
            "steps": steps * 10 - 10,
            "warmup_steps": steps * 10 // 4,
            "budget": 0.65,
            "seeds": seeds,
        },
        "retrain": {"steps": 200, "lr": 3e-4, "seeds": retrain_seeds, "against": ["interleaved", "par"]},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")


def _write_search(folder: Path, layers: int, names: list[str], steps: int, rng: np.random.Generator, seed: int) -> None:
    table = planted(layers, names, steps, rng)
    prices = {label: candidate_cost(parse_candidate(label, SETTINGS), SETTINGS, 128)[1] for label in names}
    at = [10 * k for k in range(steps)]
    write_json(
        folder / "probabilities.json",
        {
            "candidates": names,
            "steps": at,
            "probabilities": np.round(table, 7).tolist(),
            "cost": {"unit": "flops_per_token", "candidates": prices, "budget": 0.65},
            "seed": seed,
            "verdict": {
                "converged": seed == 0,
                "reasons": [f"the winner's mean margin is {0.31 + seed / 10:.2f}"],
                "figures": {},
            },
        },
    )
    write_json(
        folder / "data.json",
        {
            "name": "sotu",
            "file": "sotu.txt",
            "sha256": "0" * 64,
            "bytes": 10_000_000,
            "vocab_size": 256,
            "parts": {
                part: {"tokens": 1000, "range": [1000 * k, 1000 * k + 1000]}
                for k, part in enumerate(("weights", "alphas", "held_out", "test"))
            },
        },
    )
    baseline = (
        layers
        / 2
        * sum(
            candidate_cost(parse_candidate(block, SETTINGS), SETTINGS, 128)[1]
            for block in ("self_attention", "feed_forward")
        )
    )
    entropy = -(table * np.log(table)).sum(axis=2).mean(axis=1)
    lines = []
    for k, step in enumerate(at):
        warm = k < steps // 4
        evaluated = k % max(1, steps // 10) == 0 or k == steps - 1
        held_out = 1.8 + 3.5 * np.exp(-4 * k / steps) + 0.02 * rng.normal()
        lines.append(
            dumps_line(
                {
                    "step": step,
                    "phase": "warmup" if warm else "search",
                    "loss": held_out + 0.08 * rng.normal(),
                    "held_out_loss": held_out if evaluated else None,
                    "derived_loss": held_out + 0.4 if evaluated and not warm else None,
                    "tokens_per_second": 21000.0,
                    "temperature": 5.0 if warm else 5.0 * 0.02 ** ((k - steps // 4) / max(1, steps)),
                    "entropy": entropy[k],
                    "expected_cost": float((table[k] @ np.array([prices[n] for n in names], float)).sum()) / baseline,
                }
            )
        )
    (folder / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")


def _write_agreement(folder: Path, homes: list[Path]) -> None:
    searches = [read_probabilities(home / "probabilities.json") for home in homes]
    final = np.stack([search.final for search in searches])
    names = searches[0].candidates
    rows = []
    for layer in range(final.shape[1]):
        winners = [names[k] for k in final[:, layer].argmax(axis=1)]
        rows.append(
            {
                "layer": layer,
                "argmax": winners,
                "agree": max(map(winners.count, winners)) / len(winners),
                "mean": final[:, layer].mean(axis=0).tolist(),
                "spread": final[:, layer].std(axis=0, ddof=1).tolist(),
            }
        )
    write_json(folder / "agreement.json", {"seeds": list(range(len(homes))), "candidates": names, "layers": rows})


def _write_latency(folder: Path, names: list[str]) -> None:
    rows = {label: {"median_ms": 1.0 + 0.4 * k, "spread_ms": 0.1} for k, label in enumerate(names)}
    write_json(
        folder / "latency.json",
        {
            "device": "cpu",
            "mode": "eager",
            "dtype": "float32",
            "batch": 16,
            "seq_len": 128,
            "runs": 5,
            "candidates": rows,
        },
    )


def _write_comparison(
    folder: Path, derived: dict[str, Architecture], layers: int, seeds: int, rng: np.random.Generator
) -> None:
    """Retrainings with losses that follow a made-up law of attention and depth, the comparison, and best.json."""
    model = {**SETTINGS.to_mapping(), "task": "causal_lm"}
    beside = {name: Architecture.preset(name, model, layers) for name in ("interleaved", "par")}
    rows, means = [], {}
    for name, arch in {**derived, **beside}.items():
        noise = 0.01 * rng.normal(size=seeds)
        losses = 2.2 - 0.05 * arch.pattern.count("s") ** 0.5 + 0.02 * arch.pattern.count("i") + noise
        means[name] = (losses.mean(), arch)
        for seed, loss in enumerate(losses.tolist()):
            rows.append(
                {
                    "name": name,
                    "seed": seed,
                    "pattern": arch.pattern,
                    "parameters": arch.parameters(),
                    "flops_per_token": arch.flops_per_token(128),
                    "latency_ms": 1.0 + 0.3 * layers * arch.relative_flops(128),
                    "steps": 200,
                    "held_out_loss": loss,
                    "perplexity": float(np.exp(loss)),
                    "bits_per_character": loss / float(np.log(2)),
                    "relative_flops": arch.relative_flops(128),
                    "standard_error": 0.004,
                }
            )
            _write_training(folder / "retrain" / name / f"seed-{seed}", arch, loss, rng)
    write_json(folder / "comparison.json", rows)
    min(means.values(), key=lambda one: one[0])[1].save(folder / "architectures" / "best.json")


def _write_training(home: Path, arch: Architecture, loss: float, rng: np.random.Generator) -> None:
    home.mkdir(parents=True)
    arch.save(home / "architecture.json")
    falling = {step: loss + 3 * float(np.exp(-step / 25)) for step in range(0, 201, 10)}
    lines = [
        {
            "step": step,
            "phase": "retrain",
            "loss": value + 0.05 * rng.normal(),
            "held_out_loss": value if step % 50 == 0 else None,
            "tokens_per_second": 30000.0,
        }
        for step, value in falling.items()
    ]
    (home / "metrics.jsonl").write_text("".join(map(dumps_line, lines)), encoding="utf-8")


def add_sweep(folder: Path) -> None:
    """A sweep over two cuts and four ratios; loss rises with the ratio, and 3 at a cut of 0.5 is the largest in the
    band."""
    points = [
        {
            "name": f"cut-{cut}-ratio-{ratio}",
            "cut": cut,
            "ratio": ratio,
            "pattern": "sf",
            "relative_flops": 0.6,
            "held_out_loss": 2.0 + 0.02 * ratio - 0.01 * cut,
            "spread": 0.006,
            "within_band": ratio <= 3,
        }
        for cut in (0.5, 0.667)
        for ratio in (2, 3, 5, 8)
    ]
    write_json(
        folder / "sweep" / "sweep.json",
        {
            "baseline": {"name": "interleaved", "held_out_loss": 2.04, "noise": 0.016, "limit": 2.056},
            "seeds": 3,
            "points": points,
            "chosen": "cut-0.5-ratio-3",
            "largest_ratio": 3,
        },
    )


def add_checkpoint(folder: Path, layers: int, candidates: int) -> None:
    """A supernet's untrained weights as checkpoint.pt, in the form in which the search keeps them."""
    import torch

    from supernet import Supernet

    torch.manual_seed(0)
    sizes = {**SETTINGS.to_mapping(), "d_model": 32, "d_inner": 48, "max_len": 64, "vocab_size": 31}
    net = Supernet({**sizes, "task": "causal_lm", "layers": layers}, labels(candidates))
    torch.save({"step": 1, "model": net.state_dict(), "candidates": net.labels}, folder / "checkpoint.pt")
