"""What a search costs beside the training of one network: python benchmarks/speed.py [--peers FOLDER] [--enwik8 FOLDER]

The kinds of steps take turns of three, one thread a process, so that a busy moment hits all alike, in the environment
that search.py makes for itself. Printed are medians of turns with quartiles in ms a step, ratios of medians to a plain
interleaved Transformer's training step of the same depth, width and tokens, and the share of the machine's matrix
product peak, measured between them, that each reaches. One *average step* is what a search does for one batch of the
`weights` part and, once in `search.arch_every` times, one of the `alphas` part: all others do both at every step.
*Whole search*: the mean over the default search's steps, warm-up included. The alphas stay where they begin, so that
layouts are drawn evenly.

`--peers FOLDER`: nni 3.0 on the same candidates, in a virtual environment of its own, which is made in FOLDER on the
first use. `--enwik8 FOLDER`: also the seconds from start to first step on the file `enwik8` in FOLDER. `--growth`:
instead, how the average step grows with candidates, layers, length and batch, with a picture.
"""

import argparse
import dataclasses
import itertools
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from speed_children import peers, starts
from speed_growth import PICTURE, print_growth
from speed_memory import print_memory
from speed_sizes import CANDIDATES, Bench, Sizes, build_bench, in_turn, quartiles, timed
from speed_steps import PEERS, PLAIN, SOFT, add_averages, own_turns, soft_mixture_step, step_flops

from nas.machine.startup import restart_prepared
from supernet.gates import RELAXATIONS

GROUPS = (PLAIN, "sampled:", "gumbel:", "gumbel_hard:", "softmax:", SOFT, "nni")  # rows, in the order of the table
LOADER, PRODUCT = "drawing a batch", "matrix product"
PRODUCT_SIZE = {"cpu": 1536, "cuda": 8192}
STARTS = 3  # of each kind
SIZES = {"layers": 12, "d_model": 64, "seq_len": 64, "batch_size": 16}
# where what is kept for the backward pass outweighs the weights
MEMORY_SIZES = {
    "memory_d_model": 128,
    "memory_seq_len": 256,
}


def product_turn(bench: Bench) -> Callable[[], float]:
    """Milliseconds of one large product of square matrices in the dtype that the steps compute in."""
    device = bench.machine.device
    shape = 2 * (PRODUCT_SIZE[device.type],)
    left, right, made = (torch.rand(shape, dtype=bench.machine.dtype, device=device) for _ in range(3))
    return partial(timed, partial(torch.mm, left, right, out=made), bench.machine)


def loader_turn(bench: Bench) -> Callable[[], float]:
    """Milliseconds of drawing one batch."""
    numbers = itertools.count()
    return partial(timed, lambda: bench.draw("weights", next(numbers)), bench.machine)


def measured(bench: Bench, rounds: int, folder: Path | None) -> dict[str, list[float]]:
    """Step -> milliseconds of each round."""
    turns = own_turns(bench, tuple(RELAXATIONS))
    turns[SOFT] = partial(timed, soft_mixture_step(bench), bench.machine)
    turns |= {LOADER: loader_turn(bench), PRODUCT: product_turn(bench)}
    with peers(folder, bench.sizes) as children:
        return in_turn(turns | {row: child.turn for row, child in children.items()}, rounds)


def print_steps(sizes: Sizes, rounds: int, folder: Path | None) -> None:
    """The table of steps, and what was measured between them."""
    bench = build_bench(sizes)
    times, flops = measured(bench, rounds, folder), step_flops(bench)
    for values in (times, flops):
        add_averages(values, tuple(RELAXATIONS))
    base, product = quartiles(times[PLAIN])[1], quartiles(times[PRODUCT])[1]
    peak = 2 * PRODUCT_SIZE[bench.machine.device.type] ** 3 / product
    print(f"{sizes}, {rounds} rounds")
    for name in (name for group in GROUPS for name in times | dict.fromkeys(PEERS.values()) if name.startswith(group)):
        if name not in times:
            print(f"{name:<38} not measured")
            continue
        low, median, high = quartiles(times[name])
        share = f"{flops[name][0] / median / peak:6.1%} of the peak" if name in flops else ""
        print(
            f"{name:<38} median {median:8.2f} ms  quartiles {low:8.2f} {high:8.2f}  ratio {median / base:5.2f}{share}"
        )
    print(
        f"{PRODUCT}: {peak / 1e6:.1f} GFLOP/s ({PRODUCT_SIZE[bench.machine.device.type]} square, {bench.machine.dtype})"
    )
    print(
        f"{LOADER}: {quartiles(times[LOADER])[1]:.3f} ms, {quartiles(times[LOADER])[1] / base:.2%} of the plain step",
        flush=True,
    )


def print_starts(folder: Path | None, device: str) -> None:
    """Seconds from start to first step."""
    if folder is None:
        print("\nfrom start to first step on enwik8: not measured")
        return
    for name, seconds in zip(
        ("first", "again"), zip(*(starts(folder, device) for _ in range(STARTS)), strict=True), strict=True
    ):
        print(
            f"from start to first step on enwik8, {name}: {statistics.median(seconds):.2f} s beyond importing torch "
            f"({min(seconds):.2f} to {max(seconds):.2f})"
        )


def main(arguments: list[str] | None = None) -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (SIZES | MEMORY_SIZES | {"rounds": 14}).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--candidates", type=int, choices=CANDIDATES, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--enwik8", type=Path)
    parser.add_argument("--growth", type=Path, nargs="?", const=PICTURE, metavar="PICTURE")
    options = parser.parse_args(arguments)
    sizes = Sizes(
        **{name: getattr(options, name) for name in SIZES}, blocks=CANDIDATES[options.candidates], device=options.device
    )
    if options.growth:
        print_growth(sizes, options.rounds, options.growth)
        return
    print_steps(sizes, options.rounds, options.peers)
    print_memory(dataclasses.replace(sizes, d_model=options.memory_d_model, seq_len=options.memory_seq_len))
    print_starts(options.enwik8, options.device)


if __name__ == "__main__":
    restart_prepared()
    main()
