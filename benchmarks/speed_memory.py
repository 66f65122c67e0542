"""What a step adds to the memory of its process, each kind in a process of its own.

Counted is how far the process's resident memory rises, at its highest within four steps, above what it was once torch
and our modules were imported, the text was mapped and the plain network was built: so the plain row is its gradients,
AdamW's moments and what a step keeps for its backward pass; the others have the supernet's weights on top. A step
before makes every candidate's moments. The allocator gives memory back at once (MALLOC_TRIM_THRESHOLD_,
MALLOC_MMAP_THRESHOLD_), so that resident is what is in use. On a GPU: torch's own count of what is allocated.
"""

import argparse
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from speed_children import answer
from speed_sizes import Bench, Sizes, build_bench
from speed_steps import FAIR, MIXTURE, PLAIN, plain_step, search_steps

STEPS = 4
ALLOCATOR = {
    "GLIBC_TUNABLES": "",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_ARENA_MAX": "1",
}
# row -> (relaxation, keys of `search`, the step, the step before it)
KINDS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "sampled: weights": ("sampled", {}, "sampled: weights", FAIR),
    "sampled: alphas": ("sampled", {}, "sampled: alphas", FAIR),
    FAIR: ("sampled", {}, FAIR, FAIR),
    MIXTURE: ("sampled", {}, MIXTURE, FAIR),
    "gumbel, every candidate: alphas": ("gumbel", {"active": None}, "gumbel: alphas", "gumbel: weights"),
    "softmax: weights": ("softmax", {}, "softmax: weights", "softmax: weights"),
    "softmax: alphas": ("softmax", {}, "softmax: alphas", "softmax: weights"),
}


def grown(bench: Bench, kind: str) -> int:
    """Bytes that this process grows by at most."""
    small = dataclasses.replace(bench.sizes, layers=2, d_model=8, seq_len=16, batch_size=2)
    for step in steps_of(build_bench(small), kind):  # brings in what torch loads when first asked for
        step()
    plain = plain_step(bench)
    before = in_use(bench.machine.device)
    earlier, step = (plain, plain) if kind == PLAIN else steps_of(bench, kind)
    earlier()
    return highest(bench.machine.device, step) - before


def steps_of(bench: Bench, kind: str) -> list[Callable[[], object]]:
    """The step before, and the step that is measured."""
    if kind == PLAIN:
        return [plain_step(bench)] * 2
    relaxation, search, name, earlier = KINDS[kind]
    steps = search_steps(bench, relaxation, **search)
    return [steps[earlier], steps[name]]


def in_use(device: torch.device) -> int:
    """Bytes in use now."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else status("VmRSS")


def highest(device: torch.device, step: Callable[[], object]) -> int:
    """Bytes in use at most while the step is taken STEPS times."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the high-water mark starts anew from here
    for _ in range(STEPS):
        step()
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else status("VmHWM")


def status(key: str) -> int:
    """A size that Linux tells of this process, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def print_memory(sizes: Sizes, kinds: Sequence[str] = (PLAIN, *KINDS)) -> None:
    """The table, each kind from a process of its own; the first is what the others are compared with."""
    print(f"\nmemory at {sizes}")
    found: dict[str, float] = {}
    for kind in kinds:
        found[kind] = answer("speed_memory.py", kind, sizes.to_json(), **ALLOCATOR)
        print(f"{kind:<38} {found[kind] / 1e6:8.1f} MB  ratio {found[kind] / found[kinds[0]]:.2f}", flush=True)


def main() -> None:
    """One kind, at the sizes given as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=(PLAIN, *KINDS))
    parser.add_argument("sizes")
    options = parser.parse_args()
    print(json.dumps(grown(build_bench(Sizes.from_json(options.sizes)), options.kind)))


if __name__ == "__main__":
    main()
