"""Builds run folders of any size that conform to the contract, for tests of pictures, report and reading."""

import shutil
from pathlib import Path

import numpy as np
import yaml

from derive.strict_json import dumps_line, write_json
from supernet.blocks import BLOCKS, candidate_cost, candidate_to_json, parse_candidate
from supernet.settings import ModelSettings

LABELS = [*BLOCKS, "self_attention[heads=2]", "factorized_random_synthesizer[rank=4]", "feed_forward[d_inner=256]"]
SETTINGS = ModelSettings()
STAGES = ("search", "derive", "retrain", "latency")


def labels(count: int) -> list[str]:
    """`count` candidates' labels, 2 to 12, deliberately not in the palette's order."""
    first = ["feed_forward", "self_attention", "identity", "random_synthesizer"]
    return (first + [label for label in LABELS if label not in first])[:count]


def build_run(
    folder: Path, *, layers: int = 6, candidates: int = 4, steps: int = 20, seeds: int = 1, retrain_seeds: int = 2,
    stages: tuple[str, ...] = STAGES, rng_seed: int = 0,
) -> Path:  # fmt: skip
    """Write a run folder: attention wins early, feed-forward late; `steps` recorded entries, the first quarter warm-up."""
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
    if "derive" in stages:
        _write_architectures(folder, layers, names)
    if "latency" in stages:
        _write_latency(folder, names)
    if "retrain" in stages:
        _write_comparison(folder, layers, retrain_seeds, np.random.default_rng(rng_seed))
    return folder


def planted(layers: int, names: list[str], steps: int, rng: np.random.Generator) -> np.ndarray:
    """Probabilities [steps, layers, candidates] that move from uniform to attention early and feed-forward late."""
    depth = np.linspace(0, 1, layers)
    goal = rng.normal(0, 0.6, (layers, len(names)))
    for place, name in enumerate(names):
        goal[:, place] += {"self_attention": 3 - 5 * depth, "feed_forward": 1.5 + 1.5 * depth, "identity": depth}.get(name, 0 * depth)
    time = np.clip((np.arange(steps) / max(1, steps - 1) - 0.25) / 0.75, 0, 1)[:, None, None]
    logits = time * goal + 0.15 * np.sqrt(time) * rng.normal(size=(steps, layers, len(names)))
    table = np.exp(logits - logits.max(axis=2, keepdims=True))
    return table / table.sum(axis=2, keepdims=True)


def _write_config(folder: Path, layers: int, names: list[str], steps: int, seeds: int, retrain_seeds: int) -> None:
    config = {
        "run": {"dir": folder.name, "seed": 0, "device": "cpu", "precision": "fp32"},
        "data": {"name": "sotu", "path": None, "tokens": "bytes", "seq_len": 128, "batch_size": 16},
        "model": {"task": "causal_lm", "layers": layers, "d_model": 128, "heads": 4, "d_inner": 512, "max_len": 128},
        "search": {"blocks": names, "steps": steps * 10, "warmup_steps": steps * 10 // 4, "budget": 0.65, "seeds": seeds},
        "retrain": {"steps": 200, "lr": 3e-4, "seeds": retrain_seeds, "against": ["interleaved", "par"]},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")


def _write_search(
    folder: Path, layers: int, names: list[str], steps: int, rng: np.random.Generator, seed: int
) -> None:
    table = planted(layers, names, steps, rng)
    prices = {label: candidate_cost(parse_candidate(label, SETTINGS), SETTINGS, 128)[1] for label in names}
    at = [10 * k for k in range(steps)]
    write_json(folder / "probabilities.json", {
        "candidates": names, "steps": at, "probabilities": np.round(table, 7).tolist(),
        "cost": {"unit": "flops_per_token", "candidates": prices, "budget": 0.65}, "seed": seed,
        "verdict": {"converged": seed == 0, "reasons": [f"the winner's mean margin is {0.31 + seed / 10:.2f}"]},
    })  # fmt: skip
    write_json(folder / "data.json", {
        "name": "sotu", "file": "sotu.txt", "sha256": "0" * 64, "bytes": 10_000_000, "vocab_size": 256,
        "parts": {part: {"tokens": 1000, "range": [1000 * k, 1000 * k + 1000]}
                  for k, part in enumerate(("weights", "alphas", "held_out", "test"))},
    })  # fmt: skip
    entropy = -(table * np.log(table)).sum(axis=2).mean(axis=1)
    lines = []
    for k, step in enumerate(at):
        warm = k < steps // 4
        evaluated = k % max(1, steps // 10) == 0 or k == steps - 1
        held_out = 1.8 + 3.5 * np.exp(-4 * k / steps) + 0.02 * rng.normal()
        lines.append(dumps_line({
            "step": step, "phase": "warmup" if warm else "search", "loss": held_out + 0.08 * rng.normal(),
            "held_out_loss": held_out if evaluated else None, "derived_loss": held_out + 0.4 if evaluated and not warm else None,
            "temperature": 5.0 if warm else 5.0 * 0.02 ** ((k - steps // 4) / max(1, steps)), "entropy": entropy[k],
            "expected_cost": float((table[k] @ np.array([prices[n] for n in names], float)).sum()), "tokens_per_second": 21000.0,
        }))  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")


def _write_agreement(folder: Path, homes: list[Path]) -> None:
    from nas.run_files import Run

    runs = [Run.load(home) for home in homes]
    final = np.stack([run.search.final for run in runs])
    names = runs[0].candidates
    rows = []
    for layer in range(final.shape[1]):
        winners = [names[k] for k in final[:, layer].argmax(axis=1)]
        rows.append({
            "layer": layer, "argmax": winners, "agree": max(map(winners.count, winners)) / len(winners),
            "mean": final[:, layer].mean(axis=0).tolist(), "spread": final[:, layer].std(axis=0, ddof=1).tolist(),
        })  # fmt: skip
    write_json(folder / "agreement.json", {"seeds": list(range(len(homes))), "candidates": names, "layers": rows})


def patterns(layers: int) -> dict[str, str]:
    """Name -> pattern of the architectures that the builder writes and compares."""
    early = max(1, layers // 4)
    return {
        "argmax": "s" * early + "f" * (layers - early),
        "par-rule": "".join("s" if k < layers * 2 / 3 and k % 4 == 0 else "f" for k in range(layers)),
        "budget": "s" * early + "i" * (layers // 4) + "f" * (layers - early - layers // 4),
        "interleaved": ("sf" * layers)[:layers],
        "par": "".join("s" if k < layers * 2 / 3 and k % 5 == 0 else "f" for k in range(layers)),
    }


def _write_architectures(folder: Path, layers: int, names: list[str]) -> None:
    by_letter = {spec.letter: name for name, spec in BLOCKS.items()}
    table = planted(layers, names, 4, np.random.default_rng([0, 0]))[-1]
    for name in ("argmax", "par-rule", "budget", "best"):
        pattern = patterns(layers)["par-rule" if name == "best" else name]
        chosen = [parse_candidate(by_letter[letter], SETTINGS) for letter in pattern]
        write_json(folder / "architectures" / f"{name}.json", {
            "format": "par-architecture", "version": 1, "name": "par-rule" if name == "best" else name, "task": "causal_lm",
            "model": SETTINGS.to_mapping(), "layers": [candidate_to_json(one, SETTINGS) for one in chosen], "pattern": pattern,
            "evidence": {
                "candidates": names, "probabilities": table.tolist(),
                "rules": _rules(layers),
                "verdict": {"converged": True, "reasons": ["the winner's mean margin is 0.31"]},
                "overruled": [{"layer": 1, "preferred": "identity", "chosen": chosen[1].label, "rule": "cut"}] if layers > 1 else [],
            },
            "cost": {"parameters": 1_000_000, "flops_per_token": 2_000_000, "latency_ms": None,
                     "relative_to_interleaved": {"flops": 0.62, "latency": None}},
            "retrain": {"steps": 200, "lr": 3e-4, "batch_size": 16, "seq_len": 128},
            "provenance": {"run": folder.name, "seed": 0, "step": 190, "selection": "last",
                           "data": {"name": "sotu", "sha256": "0" * 64}, "versions": {"torch": "2.13.0", "numpy": "2.4.6"}},
        })  # fmt: skip


def _rules(layers: int) -> list[dict[str, object]]:
    end = max(1, round(layers * 0.4))
    return [
        {"rule": "attention_per_third", "value": [2.1, 0.8, 0.2], "interval": [[1.9, 2.3], [0.6, 1.0], [0.1, 0.3]], "supported": True,
         "layers": [layers // 3] * 3, "reason": "Expected attention-like blocks in the first, middle and last third: 2.1, 0.8, 0.2."},
        {"rule": "cut", "value": end / layers, "interval": [(end - 1) / layers, (end + 2) / layers], "supported": True,
         "where": "early", "region": [0, end], "chance": 0.001, "start_interval": [0, 0], "end_interval": [end - 1, end + 2],
         "reason": f"Attention pays in the first {end} of {layers} layers and no longer behind them: mass 0.61 there and 0.12 elsewhere."},
        {"rule": "ratio", "value": 4.0, "interval": [3.2, 5.1], "supported": False,
         "reason": "Not supported by the evidence: one attention block in 4 layers <of 12> & \"more\"."},
    ]  # fmt: skip


def _write_latency(folder: Path, names: list[str]) -> None:
    rows = {label: {"median_ms": 1.0 + 0.4 * k, "spread_ms": 0.1} for k, label in enumerate(names)}
    write_json(folder / "latency.json", {
        "device": "cpu", "mode": "eager", "dtype": "float32", "batch": 16, "seq_len": 128, "runs": 5, "candidates": rows,
    })  # fmt: skip


def _write_comparison(folder: Path, layers: int, seeds: int, rng: np.random.Generator) -> None:
    by_letter = {spec.letter: name for name, spec in BLOCKS.items()}
    rows = []
    pair = [candidate_cost(parse_candidate(block, SETTINGS), SETTINGS, 128)[1] for block in ("self_attention", "feed_forward")]
    baseline = layers / 2 * sum(pair)
    for name, pattern in patterns(layers).items():
        chosen = [parse_candidate(by_letter[letter], SETTINGS) for letter in pattern]
        totals = np.sum([candidate_cost(one, SETTINGS, 128) for one in chosen], axis=0)
        for seed in range(seeds):
            loss = 2.2 - 0.05 * pattern.count("s") ** 0.5 + 0.02 * pattern.count("i") + 0.01 * rng.normal()
            rows.append({
                "name": name, "seed": seed, "pattern": pattern, "parameters": int(totals[0]) + 32768,
                "flops_per_token": int(totals[1]) + 65536, "latency_ms": 1.0 + 0.2 * layers - 0.01 * pattern.count("i"), "steps": 200, "held_out_loss": loss,
                "perplexity": float(np.exp(loss)), "bits_per_character": loss / float(np.log(2)),
                "relative_flops": int(totals[1]) / baseline, "standard_error": 0.004,
            })  # fmt: skip
            lines = [dumps_line({"step": step, "phase": "retrain", "loss": loss + 3 * np.exp(-step / 50) + 0.05 * rng.normal(),
                                 "held_out_loss": loss + 3 * np.exp(-step / 50) if step % 50 == 0 else None})
                     for step in range(0, 201, 10)]  # fmt: skip
            home = folder / "retrain" / name / f"seed-{seed}"
            home.mkdir(parents=True, exist_ok=True)
            (home / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
    write_json(folder / "comparison.json", rows)


def add_checkpoint(folder: Path, layers: int, candidates: int) -> None:
    """A supernet's untrained weights as checkpoint.pt, in the form in which the search keeps them."""
    import torch

    from supernet import Supernet

    torch.manual_seed(0)
    sizes = {**SETTINGS.to_mapping(), "d_model": 32, "d_inner": 48, "max_len": 64, "vocab_size": 31}
    net = Supernet({**sizes, "task": "causal_lm", "layers": layers}, labels(candidates))
    torch.save({"step": 1, "net": net.state_dict(), "candidates": net.labels}, folder / "checkpoint.pt")
