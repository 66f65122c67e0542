"""What a process has to find when torch loads: how threads wait, how memory is kept, and no garbage collector at work.

The environment is read once, when a process starts, so a command restarts its process where something has to be set.
"""

import contextlib
import gc
import os
import sys
from collections.abc import Iterator, MutableMapping

# A step takes and returns megabytes thousands of times. Kept by the process and laid in large pages they cost a CPU no
# page faults and hardly a miss of its address cache: a search by two processes takes 8 to 18 % less time, by one 20 to
# 24 %, for 4 % more memory.
KEEP_MEMORY = "glibc.malloc.hugetlb=1:glibc.malloc.trim_threshold=1073741824:glibc.malloc.mmap_threshold=33554432"

RESTARTED = "PAR_SEARCH_RESTARTED"  # set for the restarted process, which takes it out


def prepare(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set what the user has not set."""
    # Threads that wait for each other spin for about a tenth of a millisecond, then sleep. Never spinning costs small
    # models three quarters of their speed on an idle machine; OpenMP's own hundreds of milliseconds make a step twenty
    # times slower where anything else runs (docs/log.md).
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", "3000")
    if not any(name.startswith("MALLOC_") for name in environment):  # older names of the same choices
        environment.setdefault("GLIBC_TUNABLES", KEEP_MEMORY)


def restart_prepared() -> None:
    """`prepare`, and restart this process, once, where that has set something that only a new one reads; call it first
    of all.

    Only a script that Python was given by itself restarts: not one that a debugger, a profiler or a session runs, whose
    state would go.
    """
    if os.environ.pop(RESTARTED, None):
        return
    found = os.environ.get("GLIBC_TUNABLES")
    prepare()
    if os.environ.get("GLIBC_TUNABLES") != found and _is_own_script():
        with contextlib.suppress(OSError):  # where it is refused, the command goes on as it is
            os.execve(sys.executable, sys.orig_argv, {**os.environ, RESTARTED: "1"})


def _is_own_script() -> bool:
    """Whether this process is `python SCRIPT ...` and nothing more, SCRIPT a file; by way of Linux's /proc."""
    if sys.orig_argv[1:] != sys.argv or not os.path.isfile(sys.argv[0]) or not sys.executable:
        return False
    return os.path.exists("/proc/self/exe") and os.path.samefile(sys.executable, "/proc/self/exe")


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Load modules with one garbage collection, of what they left: torch makes 280,000 objects that stay, and nearly
    seven hundred collections would walk them meanwhile.
    """
    enabled, modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > modules:
            # torch's compiler leaves frames behind that hold those of the caller, and with them its model
            gc.collect(0)
            if gc.get_freeze_count() == 0:  # to freeze and thaw is to count all there is as old
                gc.freeze()
                gc.unfreeze()
        if enabled:
            gc.enable()
