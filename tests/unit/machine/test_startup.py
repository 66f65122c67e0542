"""How search.py starts its processes: their environment, one restart, modules loaded with one garbage collection."""

import gc
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tiny_runs import ROOT

from nas.machine.startup import KEEP_MEMORY, loading, prepare

BARE = {
    name: value for name, value in os.environ.items() if not name.startswith(("GLIBC_", "MALLOC_", "GOMP_", "OMP_WAIT"))
}
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
    code = (
        "import os, sys, search; search.main(['--help']); print('torch' in sys.modules, os.environ['GLIBC_TUNABLES'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=BARE, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].split() == ["False", KEEP_MEMORY]


SCRIPT = """
import os, sys
from nas.machine.startup import restart_prepared
print("start", flush=True)
restart_prepared()
left = [name for name in os.environ if name.startswith("PAR_")]
print(os.getpid(), sys.argv[1:], os.environ.get("GLIBC_TUNABLES"), left)
"""
HOST = "import runpy; runpy.run_path('begin.py', run_name='__main__')"


@pytest.mark.skipif(not os.path.exists("/proc/self/exe"), reason="where /proc does not tell, no process restarts")
@pytest.mark.parametrize(
    "line, given, starts, kept",
    (
        (["begin.py"], {}, 2, KEEP_MEMORY),
        (["begin.py"], {"GLIBC_TUNABLES": ""}, 1, ""),
        (["begin.py"], {"MALLOC_ARENA_MAX": "2"}, 1, None),
        (["begin.py"], {"PYTHONPATH": f"{ROOT}{os.pathsep}forgets"}, 2, None),
        (["-B", "begin.py"], {}, 1, KEEP_MEMORY),
        (["-m", "begin"], {}, 1, KEEP_MEMORY),
        (["-c", HOST], {}, 1, KEEP_MEMORY),
        (["host.py"], {}, 1, KEEP_MEMORY),
        (["refuses.py"], {}, 1, KEEP_MEMORY),
    ),
    ids=(
        "bare",
        "the user's",
        "an older name",
        "forgotten on the way",
        "an option",
        "a module",
        "code",
        "a host",
        "exec refused",
    ),
)
def test_a_script_restarts_once_where_that_is_of_use(
    line: list[str], given: dict[str, str], starts: int, kept: str | None, tmp_path: Path
) -> None:
    (tmp_path / "begin.py").write_text(SCRIPT)
    (tmp_path / "host.py").write_text(HOST)
    (tmp_path / "refuses.py").write_text(
        "import os\ndef refuse(*call):\n    raise OSError\nos.execve = refuse\n" + SCRIPT
    )
    (tmp_path / "forgets").mkdir()
    (tmp_path / "forgets" / "sitecustomize.py").write_text("import os\nos.environ.pop('GLIBC_TUNABLES', None)\n")
    environment = {**BARE, "PYTHONPATH": str(ROOT), **given}
    pipes = {"stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, *line, "one", "two words"], cwd=tmp_path, env=environment, **pipes)
    lines = process.communicate(timeout=60)[0].splitlines()
    assert lines == ["start"] * starts + [f"{process.pid} ['one', 'two words'] {kept} []"]


@pytest.mark.skipif(
    not hasattr(os, "confstr") or "CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="the allocator of glibc"
)
def test_a_step_takes_its_memory_without_page_faults() -> None:
    def faults(**more: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", AGAIN], env={**BARE, **more}, capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    assert faults(GLIBC_TUNABLES=KEEP_MEMORY) < 100 < 4000 < faults(GLIBC_TUNABLES="")


@pytest.mark.parametrize("enabled", (True, False))
def test_what_is_loaded_is_old_at_once(enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with loading():
            assert not gc.isenabled()
            monkeypatch.setitem(sys.modules, "made", made := ModuleType("made"))
        assert gc.isenabled() is enabled and gc.get_freeze_count() == 0
        young = [one for generation in (0, 1) for one in gc.get_objects(generation)]
        assert not any(one is made for one in young) and any(one is made for one in gc.get_objects(2))
    finally:
        (gc.enable if was else gc.disable)()


def test_what_a_job_left_behind_is_collected_as_soon_as_ever() -> None:
    gc.collect()
    left = [[]]
    with loading():  # nothing new
        pass
    assert not any(one is left for one in gc.get_objects(2))


def test_what_others_have_frozen_stays_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = [[]]
    gc.freeze()
    try:
        with loading():
            monkeypatch.setitem(sys.modules, "made", ModuleType("made"))
        assert gc.get_freeze_count() > 0 and not any(one is theirs for one in gc.get_objects())
    finally:
        gc.unfreeze()


def test_an_optimizer_loads_torchs_compiler_with_one_collection_and_holds_no_model() -> None:
    code = """
import gc, sys, torch, weakref
from nas.training.optimizers import build_adamw
collected = []
gc.callbacks.append(lambda phase, about: collected.append(phase))
before = "torch._dynamo" in sys.modules

def train():
    model = torch.nn.Linear(2, 2)
    build_adamw(model, 0.1, 0.0)
    return weakref.ref(model)

gone = train()() is None
print(before, "torch._dynamo" in sys.modules, collected.count("start"), gone)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "1", "True"]
