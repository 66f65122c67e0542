"""Whether rules come back from planted tables, and stay silent on noise: python benchmarks/rules.py [--draws 100]

Published layouts planted sharply (0.97) and at 0.6 with Dirichlet noise of a given concentration, one seed or three;
regions of attention; tables of noise, with how many have a supported clause; and the time of a whole derivation of 48
layers, 9 candidates and 3 seeds. Prints one table each. One core: OMP_NUM_THREADS=1.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from derive import derive_architectures
from derive.kind_table import Table
from derive.patterns import expand
from derive.presets import PRESETS
from derive.program_certainty import certainty
from derive.program_reading import placed
from derive.program_search import search
from supernet.blocks import BLOCKS

ORDER = "sfirdqxem"  # candidates by letter: the first three, five or nine of these
NAMES = {spec.letter: name for name, spec in BLOCKS.items()}
LAYOUTS = {
    **{name: expand(preset.pattern) for name, preset in PRESETS.items() if preset.pattern},
    "transformer-xl-24b": expand("(sf)x12"),
    "sandwich-large": expand("(s)x6(sf)x12(f)x6"),
    "sandwich-24b-enwik8": expand("(s)x5(sf)x7(f)x5"),
    "sandwich-24b-text8": expand("(s)x3(sf)x9(f)x3"),
}
REGIONS = {
    "0,3,6,9,12 of 24": ([0, 3, 6, 9, 12], 24),
    "9,11,13,15 of 24": ([9, 11, 13, 15], 24),
    "PAR base": ([0, 4, 8, 12, 16, 20], 32),
}


def table(samples: list[np.ndarray], letters: str) -> Table:
    """A table of one recorded step a seed, [N, C] each, of the candidates with these letters."""
    attention = np.array([BLOCKS[NAMES[letter]].attention_like for letter in letters])
    identity = np.array([letter == "i" for letter in letters])
    return Table([sample[None] for sample in samples], [NAMES[letter] for letter in letters], attention, identity)


def planted(
    layout: str, letters: str, winner: float, *, seeds: int, concentration: float, rng: np.random.Generator
) -> Table:
    """Each layer's candidate has `winner`, the others share the rest evenly; rows drawn from a Dirichlet distribution
    with that mean and concentration, infinite for the mean itself."""
    mean = np.full((len(layout), len(letters)), (1 - winner) / (len(letters) - 1))
    mean[np.arange(len(layout)), [letters.index(letter) for letter in layout]] = winner
    if np.isinf(concentration):
        return table([mean] * seeds, letters)
    return table([np.stack([rng.dirichlet(row * concentration) for row in mean]) for _ in range(seeds)], letters)


def read_back(given: Table) -> str:
    """The layout of the best program, as letters."""
    program = search(given.logs(), given.kinds, given.default, np.ones((1, len(given.samples))))[0].program
    letters = {name: letter for letter, name in NAMES.items()}
    return "".join(letters[label] for label in placed(program, given).labels())


def noise(kind: str, letters: str, *, layers: int, seeds: int, rng: np.random.Generator) -> Table:
    """`flat`: softmax of small gaussians; `sharp`: one candidate at 0.97 at random; `even`: uniform on the simplex."""
    size, count = (layers, len(letters)), len(letters)
    samples = []
    for _ in range(seeds):
        if kind == "flat":
            rows = np.exp(0.3 * rng.normal(size=size))
        elif kind == "sharp":
            rows = np.full(size, 0.03 / (count - 1))
            rows[np.arange(layers), rng.integers(count, size=layers)] = 0.97
        else:
            rows = rng.dirichlet(np.ones(count), size=layers)
        samples.append(rows / rows.sum(axis=1, keepdims=True))
    return table(samples, letters)


def supported_clauses(given: Table) -> int:
    """How many clauses of the best program are supported."""
    sure = certainty(given)
    return sum(sure.clause_supported(at) for at in range(len(sure.returns)))


def show_layouts(draws: int, rng: np.random.Generator) -> None:
    """Share of draws in which each layout comes back letter by letter."""
    columns = [(0.97, np.inf, 1, count) for count in (3, 5, 9)]
    columns += [(0.6, c, 3, count) for c in (10, 20, 50) for count in (3, 5, 9)]
    columns += [(0.6, 20, 1, count) for count in (3, 5, 9)]
    print("share that comes back, by winner/concentration/seeds/candidates")
    print(f"{'':<22}" + " ".join(f"{w}/{c}/{s}/{n}".rjust(13) for w, c, s, n in columns))
    for name, layout in LAYOUTS.items():
        shares = []
        for winner, concentration, seeds, count in columns:
            tries = 1 if np.isinf(concentration) else draws
            found = sum(
                read_back(planted(layout, ORDER[:count], winner, seeds=seeds, concentration=concentration, rng=rng))
                == layout
                for _ in range(tries)
            )
            shares.append(found / tries)
        print(f"{name:<22}" + " ".join(f"{share:13.2f}" for share in shares), flush=True)


def show_regions(draws: int, rng: np.random.Generator) -> None:
    """Mean share of the program's attention blocks that lie in the planted region, sharp and with noise."""
    print("\nattention blocks inside the planted region (sharp, one seed; 0.6, concentration 20, three seeds)")
    for name, (places, layers) in REGIONS.items():
        layout = "".join("s" if layer in places else "f" for layer in range(layers))
        shares = []
        for winner, concentration, seeds in ((0.97, np.inf, 1), (0.6, 20, 3)):
            own = []
            for _ in range(1 if np.isinf(concentration) else draws):
                given = planted(layout, "sfi", winner, seeds=seeds, concentration=concentration, rng=rng)
                held = [layer for layer, letter in enumerate(read_back(given)) if letter == "s"]
                own.append(np.mean([places[0] <= layer <= places[-1] for layer in held]) if held else 0.0)
            shares.append(min(own))
        print(f"{name:<22}" + " ".join(f"{share:8.2f}" for share in shares) + "  (least of all draws)", flush=True)


def show_noise(draws: int, rng: np.random.Generator) -> None:
    """How many tables of noise have a supported clause."""
    print(f"\ntables of noise with a supported clause, of {draws}")
    for kind in ("flat", "sharp", "even"):
        for seeds in (1, 3):
            found = []
            for layers, count in ((8, 5), (12, 3), (24, 3), (24, 5), (32, 3)):
                made = (noise(kind, ORDER[:count], layers=layers, seeds=seeds, rng=rng) for _ in range(draws))
                found.append(f"{layers} x {count}: {sum(supported_clauses(given) > 0 for given in made)}")
            print(f"{kind:<6} {seeds} seed{'s' if seeds > 1 else ' '}  " + "   ".join(found), flush=True)


def show_time(rng: np.random.Generator) -> None:
    """Seconds of a whole derivation from files: 48 layers, 9 candidates, 3 seeds, 40 recorded steps."""
    print("\nseconds of a whole derivation, 48 layers, 9 candidates, 3 seeds")
    layout = expand("(sfff)x9(f)x12")
    makers = {
        "planted, 0.6": lambda: planted(layout, ORDER, 0.6, seeds=3, concentration=20, rng=rng),
        "sharp noise": lambda: noise("sharp", ORDER, layers=48, seeds=3, rng=rng),
        "even noise": lambda: noise("even", ORDER, layers=48, seeds=3, rng=rng),
    }
    for name, make in makers.items():
        seconds = []
        for _ in range(3):
            with tempfile.TemporaryDirectory() as folder:
                write_run(Path(folder), make(), rng)
                started = time.perf_counter()
                derive_architectures(folder)
                seconds.append(time.perf_counter() - started)
        print(f"{name:<14} median {statistics.median(seconds):.2f} s, largest {max(seconds):.2f} s", flush=True)


def write_run(folder: Path, given: Table, rng: np.random.Generator) -> None:
    """The files that a derivation reads, with forty recorded steps that waver about each seed's table."""
    (folder / "config.yaml").write_text("model: {d_model: 64, heads: 4, max_len: 64}\n", encoding="utf-8")
    data = json.dumps({"name": "none", "sha256": "0" * 64, "vocab_size": 64})
    for seed, sample in enumerate(given.samples):
        home = folder / f"seed-{seed}"
        home.mkdir()
        rows = np.maximum(sample + rng.normal(0, 0.01, (40, *sample.shape[1:])), 1e-4)
        record = {
            "candidates": given.labels,
            "steps": list(range(40)),
            "probabilities": (rows / rows.sum(axis=2, keepdims=True)).tolist(),
            "cost": {"unit": "parameters", "candidates": dict.fromkeys(given.labels, 1.0)},
            "seed": seed,
        }
        (home / "probabilities.json").write_text(json.dumps(record), encoding="utf-8")
        (home / "data.json").write_text(data, encoding="utf-8")


def main() -> None:
    """Print the four tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=100, help="of each table with noise")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    show_layouts(options.draws, rng)
    show_regions(options.draws, rng)
    show_noise(options.draws, rng)
    show_time(rng)


if __name__ == "__main__":
    main()
