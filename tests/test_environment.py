"""What search.py leaves in its processes' environment, and that it does what it is there for."""

import os
import subprocess
import sys

import pytest

from nas.environment import KEEP_MEMORY, prepare
from tiny_runs import ROOT

BARE = {name: value for name, value in os.environ.items() if not name.startswith(("GLIBC_", "MALLOC_"))}
AGAIN = """
import resource, torch
def step():
    return [torch.ones(2**18) for _ in range(20)]
step(), step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step(), step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_only_what_the_user_has_not_set() -> None:
    found: dict[str, str] = {}
    prepare(found)
    assert found == {"GOMP_SPINCOUNT": "3000", "GLIBC_TUNABLES": KEEP_MEMORY}
    for memory in ({"GLIBC_TUNABLES": "glibc.malloc.check=0"}, {"MALLOC_TRIM_THRESHOLD_": "65536"}):
        own = {"OMP_WAIT_POLICY": "PASSIVE", **memory}
        prepare(given := dict(own))
        assert given == own


def test_search_prepares_before_torch_is_loaded() -> None:
    code = "import os, sys, search; print('torch' in sys.modules, os.environ['GLIBC_TUNABLES'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=BARE, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", KEEP_MEMORY]


@pytest.mark.skipif(not hasattr(os, "confstr") or "CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="the allocator of glibc")
def test_a_step_takes_its_memory_without_page_faults() -> None:
    def faults(**more: str) -> int:
        done = subprocess.run([sys.executable, "-c", AGAIN], env={**BARE, **more}, capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert faults(GLIBC_TUNABLES=KEEP_MEMORY) < 100 < 4000 < faults(GLIBC_TUNABLES="")
