"""A run folder read back: probabilities and metrics as numpy arrays, everything else as the files' own objects."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nas.results.run_readers import (
    Search,
    read_architectures,
    read_comparison,
    read_config,
    read_metrics,
    read_object,
    read_probabilities,
    read_retrained,
    read_sweep,
    seed_folders,
)
from supernet.errors import UserError


@dataclass(frozen=True)
class Run:
    """A run folder. What a stage has not written is None or empty; `seeds` holds the `seed-K/` runs of a parent, by
    K."""

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    search: Search | None = None
    metrics: dict[str, np.ndarray] = field(default_factory=dict)
    data: dict[str, Any] | None = None
    latency: dict[str, Any] | None = None
    architectures: dict[str, dict[str, Any]] = field(default_factory=dict)
    comparison: list[dict[str, Any]] = field(default_factory=list)
    retrained: dict[tuple[str, int], dict[str, np.ndarray]] = field(default_factory=dict)
    agreement: dict[str, Any] | None = None
    sweep: dict[str, Any] | None = None
    seeds: dict[int, "Run"] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: str | Path) -> "Run":
        """Read a run folder; UserError names the file that is missing, broken or not as the contract says."""
        folder = Path(folder)
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder")
        known = ("config.yaml", "probabilities.json", "metrics.jsonl", "comparison.json", "architectures")
        if not any((folder / name).exists() for name in known):
            raise UserError(f"{folder}: not a run folder; it has none of {', '.join(known)}")
        return cls(
            folder=folder,
            config=read_config(folder / "config.yaml"),
            search=read_probabilities(folder / "probabilities.json"),
            metrics=read_metrics(folder / "metrics.jsonl"),
            data=read_object(folder / "data.json"),
            latency=read_object(folder / "latency.json"),
            architectures=read_architectures(folder / "architectures"),
            comparison=read_comparison(folder / "comparison.json"),
            retrained=read_retrained(folder / "retrain"),
            agreement=read_object(folder / "agreement.json"),
            sweep=read_sweep(folder / "sweep" / "sweep.json"),
            seeds={k: cls.load(sub) for k, sub in seed_folders(folder)},
        )

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.folder.resolve().name

    @property
    def searches(self) -> list[Search]:
        """The recorded searches: this run's own, or those of its seeds in the order of K, candidates in the first's
        order.

        UserError where the seeds differ in layers or candidates.
        """
        own = [self.search] if self.search else [run.search for run in self.seeds.values()]
        found = [search for search in own if search is not None]
        return [search.in_order_of(found[0], self.folder) for search in found]

    @property
    def candidates(self) -> list[str]:
        """The candidates' labels in the files' order; empty where nothing was searched."""
        return self.searches[0].candidates if self.searches else []

    @property
    def layers(self) -> int:
        """The number of layers searched, or of the first architecture; 0 where neither is there."""
        if self.searches:
            return self.searches[0].probabilities.shape[1]
        return next((len(arch["layers"]) for arch in self.architectures.values()), 0)

    def final(self) -> np.ndarray:
        """The last recorded probabilities of every search, [K, N, C]; UserError where there is no search."""
        if not self.searches:
            raise UserError(f"{self.folder}: has no probabilities.json; run the search first")
        return np.stack([search.final for search in self.searches])

    def setting(self, key: str, default: Any = None) -> Any:
        """A resolved setting such as `search.warmup_steps`; `default` where it is missing or null."""
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return default if value is None else value

    def newest_source(self) -> int:
        """When the last of the files that pictures are made of was written, in ns since 1970; how long stages took is
        in none."""
        patterns = (
            "*.json",
            "*.jsonl",
            "*.yaml",
            "*.pt",
            "architectures/*.json",
            "retrain/*/seed-*/*",
            "seed-*/*.*",
            "sweep/*.json",
        )
        sources = (path for pattern in patterns for path in self.folder.glob(pattern) if path.name != "timings.json")
        return max((path.stat().st_mtime_ns for path in sources), default=0)
