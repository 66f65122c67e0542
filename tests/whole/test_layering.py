"""How the sources may import one another, and that what only reads files needs no torch."""

import ast
import subprocess
import sys
import time
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from nas import ROOMS

ROOT = Path(__file__).parents[2]
FOLDERS = ("supernet", "derive", "nas")  # each may import itself and those before it
SOURCES = sorted([*(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")), ROOT / "search.py"])
NAMED = [path.relative_to(ROOT).as_posix() for path in SOURCES]
MODULES = {name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name for name in NAMED}
WITH_TORCH = ["derive/building.py"]
WITHOUT_TORCH = [name for name in NAMED if name.startswith("derive/") and name not in WITH_TORCH] + [
    f"supernet/{name}.py" for name in ("__init__", "blocks", "costs", "errors", "settings")
]
MOST_FILES, MOST_LINES = 15, 2000  # of a room


@lru_cache
def imported(name: str, *, module_level: bool = False) -> frozenset[str]:
    """What a source imports, as dotted names; with `module_level` only what importing the source would import."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{name}:{node.lineno}: relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in MODULES else node.module)
        deferred = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not (module_level and (deferred or checking)):
            for child in ast.iter_child_nodes(node):
                visit(child)

    visit(ast.parse((ROOT / name).read_text(encoding="utf-8")))
    return frozenset(found)


def packages(name: str, *, module_level: bool = False) -> set[str]:
    """The top-level packages of what a source imports."""
    return {module.split(".")[0] for module in imported(name, module_level=module_level)}


def room(module: str) -> str | None:
    """The room that a module stands in; None for one outside `nas` or directly in it."""
    top, _, rest = module.partition(".")
    return rest.split(".")[0] if top == "nas" and rest.split(".")[0] in ROOMS else None


def test_all_parts_are_looked_at() -> None:
    assert {name.split("/")[0] for name in NAMED} == {*FOLDERS, "search.py"}
    folders = {path.parent.name for path in (ROOT / "nas").glob("*/__init__.py")}
    assert folders == set(ROOMS) and len(ROOMS) == len(set(ROOMS))
    assert {path.name for path in (ROOT / "nas").glob("*.py")} == {"__init__.py", "__main__.py", "api.py"}


@pytest.mark.parametrize("name", NAMED)
def test_imports_go_one_way(name: str) -> None:
    home = name.split("/")[0]
    allowed = FOLDERS if home == "search.py" else FOLDERS[: FOLDERS.index(home) + 1]
    assert packages(name) & {*FOLDERS, "search", "tests", "benchmarks"} <= set(allowed)


@pytest.mark.parametrize("module", [module for module in MODULES if room(module)])
def test_a_room_imports_only_rooms_before_it(module: str) -> None:
    """Deferred imports and those for annotations count as well; nothing in a room imports what stands above all."""
    before = ROOMS[: ROOMS.index(room(module)) + 1]
    for other in imported(MODULES[module]):
        if other.split(".")[0] == "nas":
            assert room(other) in before, f"{module} imports {other}"


def test_no_circles() -> None:
    """Not even for annotations: a file can be read from its imports downwards."""
    graph = {module: imported(name) & MODULES.keys() - {module} for module, name in MODULES.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_stays_small_and_says_what_belongs_in(name: str) -> None:
    files = [path for path in (ROOT / "nas" / name).glob("*.py") if path.name != "__init__.py"]
    assert len(files) <= MOST_FILES
    assert sum(path.read_text(encoding="utf-8").count("\n") for path in files) <= MOST_LINES
    said = (ROOT / "nas" / name / "__init__.py").read_text(encoding="utf-8")
    assert "Imports " in said and said.count("\n") <= 5 and isinstance(ast.parse(said).body[0], ast.Expr)


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_what_reads_files_imports_no_torch(name: str) -> None:
    assert "torch" not in packages(name, module_level=True)


def test_torch_is_used_where_the_lists_say() -> None:
    assert all("torch" in packages(name, module_level=True) for name in WITH_TORCH)


def test_base_names_are_unique() -> None:
    names = [Path(name).name for name in NAMED] + [path.name for path in (ROOT / "tests").rglob("*.py")]
    names = [name for name in names if name not in ("__init__.py", "conftest.py")]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


def test_the_tests_stand_as_the_sources_do() -> None:
    """`tests/unit/FOLDER/test_FILE.py` is of a file in that folder or room; others are of whole commands."""
    for path in (ROOT / "tests" / "unit").glob("*/test_*.py"):
        folder, file = path.parent.name, path.name.removeprefix("test_")
        home = ROOT / "nas" / folder if folder in ROOMS else ROOT / folder
        assert (home / file).exists(), f"{path.relative_to(ROOT)}: no such source"


@pytest.mark.parametrize("package", ["supernet", "derive", "derive.derivation"])
def test_importing_needs_no_torch_and_starts_fast(package: str) -> None:
    code = f"import sys, {package}; assert 'torch' not in sys.modules; assert 'scipy' not in sys.modules"
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
    assert time.perf_counter() - start < 3  # 1.5 s on a quiet machine


@pytest.mark.parametrize(
    "room", ["tasks.table", "results.run_files", "results.choice", "pictures.plots", "page.report"]
)
def test_what_shows_a_run_needs_no_torch(room: str) -> None:
    code = f"import sys, nas.{room}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


def test_names_that_need_torch_come_when_asked_for() -> None:
    code = (
        "import sys, derive, supernet, nas\n"
        "from derive import build\n"
        "assert callable(build) and 'torch' in sys.modules\n"
        "from supernet import Supernet\n"
        "assert isinstance(Supernet, type)\n"
        "assert isinstance(nas.Run, type)\n"
        "for package in (derive, supernet, nas):\n"
        "    try:\n"
        "        package.nothing\n"
        "    except AttributeError as error:\n"
        "        assert 'nothing' in str(error)\n"
        "    else:\n"
        "        raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)
