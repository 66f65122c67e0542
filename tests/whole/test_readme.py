"""The README's commands run, in its order and from one folder; its example files do what it says."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = [block.strip() for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL)]
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
SET_UP = BLOCKS[:2]
COMMANDS = [line for block in BLOCKS[2:] for line in block.splitlines()]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def run_line(line: str, cwd: Path) -> subprocess.CompletedProcess:
    words = shlex.split(line)
    if words[0] == "par-search":
        words = [str(ROOT / "search.py"), *words[1:]]
    elif words[0] == "python":
        words = words[1:]
    elif words[0] == "torchrun":
        words = ["-m", "torch.distributed.run", *words[1:]]
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like a clone, with the files that the commands name."""
    home = tmp_path_factory.mktemp("readme")
    (home / "configs").symlink_to(ROOT / "configs")
    (home / "search.py").symlink_to(ROOT / "search.py")
    (home / "examples").symlink_to(ROOT / "examples")
    (home / "my.txt").write_text(
        "Never was a text of one's own so short and so often repeated.\n" * 400, encoding="utf-8"
    )
    return home


def test_the_first_two_commands_set_up_run_and_test() -> None:
    assert SET_UP == [
        "pip install -c constraints.txt -e . && python search.py",
        'pip install -c constraints.txt -e ".[test]" && python -m pytest',
    ]


def test_every_command_runs(home: Path) -> None:
    shorter = {  # the full-size search on one's own text is cut to the debug preset's size
        "par-search run --data.name text": " --config configs/debug.yaml --run.dir runs/mine",
        "par-search sweep": " --retrain.steps 20",
    }
    assert len(COMMANDS) == 14
    for line in COMMANDS:
        line += next((extra for start, extra in shorter.items() if line.startswith(start)), "")
        done = run_line(line, home)
        assert done.returncode == 0, f"{line}\n{done.stderr[-2000:]}"


def test_the_python_examples_run(home: Path) -> None:
    for code in PYTHON:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=home, env=environment(), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{code}\n{done.stderr[-2000:]}"


def test_an_own_loop_learns_a_derived_file(home: Path) -> None:
    done = run_line("python examples/retrain_loop.py runs/try/architectures/budget.json my.txt 60", home)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert len(losses) == 4 and losses[-1] < losses[0] / 2


def test_the_own_block_was_a_candidate(home: Path) -> None:
    text = (home / "runs" / "own" / "probabilities.json").read_text(encoding="utf-8")
    assert '"causal_convolution"' in text


def test_files_that_the_readme_names_exist() -> None:
    for name in re.findall(r"\]\(((?!http)[^)]+)\)", README) + re.findall(
        r"`((?:configs|examples|derive)/[\w./]+)`", README
    ):
        assert (ROOT / name).exists(), name
