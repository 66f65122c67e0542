"""What a process has to find when torch loads: how threads wait, how memory is kept, and no garbage collector at work.

The environment is read once, when a process starts, so a command begins its process anew where something has to be set.
"""

import contextlib
import gc
import os
import sys
from collections.abc import Iterator, MutableMapping

# A step takes and returns megabytes thousands of times. Kept by the process and laid in large pages they cost a CPU no page faults
# and hardly a miss of its address cache: a search by two processes takes 8 to 18 % less time, for 4 % more memory.
KEEP_MEMORY = "glibc.malloc.hugetlb=1:glibc.malloc.trim_threshold=1073741824:glibc.malloc.mmap_threshold=33554432"


def prepare(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set what the user has not set."""
    # Threads that wait for each other spin for about a tenth of a millisecond, then sleep. Never spinning costs small models three
    # quarters of their speed on an idle machine; OpenMP's own hundreds of milliseconds make a step twenty times slower where
    # anything else runs (benchmarks/README.md).
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", "3000")
    if not any(name.startswith("MALLOC_") for name in environment):  # older names of the same choices
        environment.setdefault("GLIBC_TUNABLES", KEEP_MEMORY)


def restart_prepared() -> None:
    """`prepare`, and begin this process anew where that has set something that only a new one reads; call it first of all."""
    before = dict(os.environ)
    prepare()
    if sys.platform == "linux" and dict(os.environ) != before:
        os.execv(sys.executable, sys.orig_argv)


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Load modules without a garbage collection: torch makes 280,000 objects that stay, and would walk them a dozen times meanwhile."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count() == 0:  # to freeze and thaw is to count all there is as old, so that no collection of the young walks it
            gc.freeze()
            gc.unfreeze()
        if enabled:
            gc.enable()
