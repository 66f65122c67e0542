"""What search.py leaves in its processes' environment, and that it does what it is there for."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nas.environment import KEEP_MEMORY, loading, prepare
from tiny_runs import ROOT

BARE = {name: value for name, value in os.environ.items() if not name.startswith(("GLIBC_", "MALLOC_", "GOMP_", "OMP_WAIT"))}
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
    code = "import os, sys, search; search.main(['--help']); print('torch' in sys.modules, os.environ['GLIBC_TUNABLES'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=BARE, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].split() == ["False", KEEP_MEMORY]


@pytest.mark.skipif(sys.platform != "linux", reason="exec elsewhere leaves another process")
@pytest.mark.parametrize("given, starts", ((BARE, 2), ({**BARE, "GOMP_SPINCOUNT": "1", "GLIBC_TUNABLES": ""}, 1)), ids=("bare", "set"))
def test_a_process_begins_anew_once_where_something_is_to_be_set(given: dict[str, str], starts: int, tmp_path: Path) -> None:
    script = tmp_path / "begin.py"
    script.write_text(
        "import os, sys\nfrom nas.environment import restart_prepared\nprint('start', flush=True)\nrestart_prepared()\n"
        "print(os.getpid(), sys.argv[1:], sys.flags.dont_write_bytecode, os.environ['GLIBC_TUNABLES'])\n")  # fmt: skip
    command = [sys.executable, "-B", str(script), "one", "two words"]
    process = subprocess.Popen(command, cwd=tmp_path, env={**given, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True)
    lines = process.communicate()[0].splitlines()
    kept = given.get("GLIBC_TUNABLES", KEEP_MEMORY)
    assert lines == ["start"] * starts + [f"{process.pid} ['one', 'two words'] 1 {kept}"]


@pytest.mark.skipif(not hasattr(os, "confstr") or "CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="the allocator of glibc")
def test_a_step_takes_its_memory_without_page_faults() -> None:
    def faults(**more: str) -> int:
        done = subprocess.run([sys.executable, "-c", AGAIN], env={**BARE, **more}, capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert faults(GLIBC_TUNABLES=KEEP_MEMORY) < 100 < 4000 < faults(GLIBC_TUNABLES="")


@pytest.mark.parametrize("enabled", (True, False))
def test_what_is_loaded_is_old_at_once(enabled: bool) -> None:
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with loading():
            assert not gc.isenabled()
            made = [[]]
        assert gc.isenabled() is enabled and gc.get_freeze_count() == 0
        young = [one for generation in (0, 1) for one in gc.get_objects(generation)]
        assert not any(one is made for one in young) and any(one is made for one in gc.get_objects(2))
    finally:
        (gc.enable if was else gc.disable)()


def test_what_others_have_frozen_stays_frozen() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with loading():
            pass
        assert gc.get_freeze_count() == frozen
    finally:
        gc.unfreeze()


def test_an_optimizer_loads_torchs_compiler_and_nothing_is_collected_meanwhile() -> None:
    code = """
import gc, sys, torch
from nas.optimizers import build_adamw
collected = []
gc.callbacks.append(lambda phase, about: collected.append(phase))
before = "torch._dynamo" in sys.modules
build_adamw(torch.nn.Linear(2, 2), 0.1, 0.0)
print(before, "torch._dynamo" in sys.modules, len(collected))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "0"]
