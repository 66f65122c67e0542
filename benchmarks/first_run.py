"""What a newcomer's first command costs: python benchmarks/first_run.py [--config FILE]

Runs `search.py run` as a process of its own and prints minutes in all, seconds to the first progress bar, and the peak
memory of all its processes together (proportional set size, read twice a second), beside what the run itself printed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def family(parent: int) -> list[int]:
    """The process and all its descendants."""
    children = []
    for task in Path("/proc").glob(f"{parent}/task/*/children"):
        try:
            children += [int(word) for word in task.read_text().split()]
        except OSError:
            continue
    return [parent, *(one for child in children for one in family(child))]


def memory(pid: int) -> int:
    """Bytes of a process, pages that several share divided between them."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def main() -> None:
    """Measure one run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", help="YAML file of the run; default: no arguments at all")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arguments = [sys.executable, str(ROOT / "search.py")]
        if options.config:
            arguments += ["run", "--config", str(Path(options.config).resolve())]
        started = time.perf_counter()
        process = subprocess.Popen(arguments, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        first: list[float] = []

        def watch_errors() -> None:
            for line in process.stderr:
                if "%|" in line and not first:
                    first.append(time.perf_counter() - started)

        peak = 0
        thread = threading.Thread(target=watch_errors)
        thread.start()
        while process.poll() is None:
            peak = max(peak, sum(memory(pid) for pid in family(process.pid)))
            time.sleep(0.5)
        thread.join()
        seconds = time.perf_counter() - started
        print(process.stdout.read())
    print(f"exit code {process.returncode}")
    print(f"in all {seconds / 60:.2f} minutes on {len(os.sched_getaffinity(0))} cores")
    print(f"first progress after {first[0]:.1f} s" if first else "no progress was shown")
    print(f"peak memory {peak / 1e9:.2f} GB")
    sys.exit(process.returncode)


if __name__ == "__main__":
    main()
