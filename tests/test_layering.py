"""How the sources may import one another, and that what only reads files needs no torch."""

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("supernet", "derive", "nas")  # each may import itself and those before it
SOURCES = sorted([*(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")), ROOT / "search.py"])
NAMED = [str(path.relative_to(ROOT)) for path in SOURCES]
WITH_TORCH = ["derive/building.py"]
WITHOUT_TORCH = [name for name in NAMED if name.startswith("derive/") and name not in WITH_TORCH] + [
    f"supernet/{name}.py" for name in ("__init__", "blocks", "costs", "errors", "settings")
]


def imports(name: str, *, module_level: bool = False) -> set[str]:
    """Top-level packages that a source imports; with `module_level` only what importing the source would import."""
    tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno}: relative import"
            found.add(node.module.split(".")[0])
        deferred = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not (module_level and (deferred or checking)):
            for child in ast.iter_child_nodes(node):
                visit(child)

    visit(tree)
    return found


def test_all_parts_are_looked_at() -> None:
    assert {name.split("/")[0] for name in NAMED} == {*FOLDERS, "search.py"}
    assert len(NAMED) > 30


@pytest.mark.parametrize("name", NAMED)
def test_imports_go_one_way(name: str) -> None:
    home = name.split("/")[0]
    allowed = FOLDERS if home == "search.py" else FOLDERS[: FOLDERS.index(home) + 1]
    assert imports(name) & {*FOLDERS, "search", "tests", "benchmarks"} <= set(allowed)


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_what_reads_files_imports_no_torch(name: str) -> None:
    assert "torch" not in imports(name, module_level=True)


def test_torch_is_used_where_the_lists_say() -> None:
    assert all("torch" in imports(name, module_level=True) for name in WITH_TORCH)


def test_base_names_are_unique() -> None:
    names = [Path(name).name for name in NAMED] + [path.name for path in (ROOT / "tests").rglob("*.py")]
    names = [name for name in names if name not in ("__init__.py", "conftest.py")]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


@pytest.mark.parametrize("package", ["supernet", "derive", "derive.derivation"])
def test_importing_needs_no_torch_and_starts_fast(package: str) -> None:
    code = f"import sys, {package}; assert 'torch' not in sys.modules; assert 'scipy' not in sys.modules"
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
    assert time.perf_counter() - start < 3  # 1.5 s on a quiet machine


def test_names_that_need_torch_come_when_asked_for() -> None:
    code = (
        "import sys, derive, supernet\n"
        "from derive import build\n"
        "assert callable(build) and 'torch' in sys.modules\n"
        "from supernet import Supernet\n"
        "assert isinstance(Supernet, type)\n"
        "for package in (derive, supernet):\n"
        "    try:\n"
        "        package.nothing\n"
        "    except AttributeError as error:\n"
        "        assert 'nothing' in str(error)\n"
        "    else:\n"
        "        raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)
