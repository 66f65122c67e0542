"""The other processes of a measurement: those that take turns with ours, those that answer once, and the environment
that nni needs."""

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import torch
from speed_sizes import Sizes, child_environment
from speed_steps import PEERS

BENCHMARKS = Path(__file__).parent
# nni declares neither Lightning nor the old setuptools that it imports; the last two are what our own modules import.
PACKAGES = (
    f"torch=={torch.__version__.partition('+')[0]}",
    "nni==3.0",
    "pytorch-lightning==2.6.6",
    "setuptools==80.9.0",
    "numpy==2.4.6",
    "pyyaml==6.0.4",
)


class Child:
    """A process that answers each line with the milliseconds of one more step."""

    def __init__(self, command: list[str]):
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by its owner
        self._process = subprocess.Popen(
            command,
            env=child_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def turn(self) -> float:
        """Milliseconds of the next step; RuntimeError with what the process last said where it has ended."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("run\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            self._errors.seek(0)
            raise RuntimeError(f"{self._process.args[:3]} ended:\n{self._errors.read()[-3000:]}")
        return float(answer)

    def close(self) -> None:
        """Let it end."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._errors.close()


def peers_python(folder: Path) -> Path:
    """The interpreter of nni's environment in `folder`, which is made where it is not there."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True, stdout=sys.stderr)
    return python


def answer(script: str, *arguments: str, **environment: str) -> float:
    """The number that one of our scripts prints; RuntimeError with what it last said where it fails."""
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    done = subprocess.run(command, env=child_environment(**environment), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{script} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout)


def starts(folder: Path, device: str) -> tuple[float, float]:
    """Seconds to the first step of a search on enwik8: with an empty cache of ours, and with the one that this left
    behind."""
    with tempfile.TemporaryDirectory() as made:
        # matplotlib keeps its list of fonts
        own = {
            "XDG_CACHE_HOME": made,
            "TMPDIR": made,
            "MPLCONFIGDIR": matplotlib.get_cachedir(),
        }
        found = []
        for run in ("first", "again"):
            keys = (f"--run.dir={made}/{run}", "--run.workers=1", f"--run.device={device}", "--search.seeds=1")
            data = ("--data.name=enwik8", f"--data.path={folder}")
            found.append(answer("speed_start.py", str(time.time()), "search", *keys, *data, **own))
    return found[0], found[1]


@contextlib.contextmanager
def peers(folder: Path | None, sizes: Sizes) -> Iterator[dict[str, Child]]:
    """Row -> the process of each of nni's strategies; none without a folder."""
    python = None if folder is None else str(peers_python(folder))
    script = str(BENCHMARKS / "speed_peers.py")
    with contextlib.ExitStack() as stack:
        running = {}
        for name, row in PEERS.items() if python else ():
            running[row] = Child([python, script, name, sizes.to_json()])
            stack.callback(running[row].close)
        yield running
