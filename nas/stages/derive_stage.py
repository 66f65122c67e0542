"""The derivation as a stage: reads a run folder, writes its architectures, prints what was found. Needs no torch."""

import dataclasses
from pathlib import Path
from typing import Any

from derive import Architecture, derive_architectures
from nas.config.sections import DeriveConfig
from nas.results.run_readers import read_probabilities, seed_folders


def derive_stage(folder: Path, choices: DeriveConfig) -> dict[str, Architecture]:
    """Write `architectures/NAME.json` for everything that the probabilities yield."""
    derived = derive_architectures(folder, **dataclasses.asdict(choices))
    for name, arch in derived.items():
        arch.save(folder / "architectures" / f"{name}.json")
    return derived


def print_verdicts(folder: Path) -> None:
    """`converged` or `not converged` for every seed, with the reasons."""
    homes = [folder] if (folder / "probabilities.json").exists() else [home for _, home in seed_folders(folder)]
    for home in homes:
        name = "" if home == folder else f"{home.name}: "
        print(f"{name}{_told(read_probabilities(home / 'probabilities.json').verdict)}")


def print_derived(derived: dict[str, Architecture]) -> None:
    """`converged` or `not converged`, over all seeds, then name, pattern and cost of each derived architecture."""
    print(_told(next(iter(derived.values())).evidence["verdict"]))
    for name, arch in derived.items():
        cost = arch.cost["relative_to_interleaved"]["flops"]
        print(f"{name:<10}{arch.pattern}  {cost:.3f} of the interleaved layers' FLOPs")


def _told(verdict: dict[str, Any] | None) -> str:
    found = verdict or {"reasons": ["no verdict is recorded"]}
    word = "converged" if found.get("converged") is True else "not converged"
    return f"{word}: {'; '.join(map(str, found.get('reasons', [])))}"
