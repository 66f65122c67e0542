"""Several seeds of one search: where they agree, layer by layer."""

from pathlib import Path

import numpy as np

from derive.strict_json import read_json, write_json


def write_agreement(folder: Path, homes: list[Path]) -> None:
    """`agreement.json` of the parent: each layer's winners by seed, their agreement, mean probabilities and spread."""
    runs = [read_json(home / "probabilities.json") for home in homes]
    candidates = runs[0]["candidates"]
    last = np.array([run["probabilities"][-1] for run in runs])  # [seeds, N, C]
    winners = last.argmax(axis=2)  # [seeds, N]
    layers = []
    for layer in range(last.shape[1]):
        votes = np.bincount(winners[:, layer], minlength=len(candidates))
        layers.append(
            {
                "layer": layer,
                "argmax": [candidates[index] for index in winners[:, layer]],
                "agree": float(votes.max() / len(runs)),
                "mean": np.round(last[:, layer].mean(axis=0), 6).tolist(),
                "spread": np.round(last[:, layer].std(axis=0, ddof=1), 6).tolist(),
            }
        )
    write_json(
        folder / "agreement.json",
        {
            "seeds": [run["seed"] for run in runs],
            "candidates": candidates,
            "agree": float(np.mean([row["agree"] for row in layers])),
            "converged": [run["verdict"]["converged"] for run in runs],
            "layers": layers,
        },
    )
