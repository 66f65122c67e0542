"""Disk full, read-only folder, vanished folder: python benchmarks/disk_faults.py WORK [--times 2] [--seed 0]

The run of soak.py again, with a fault of the disk at a random moment. Each must end with one `error:` line, exit code 2
or 3 and no traceback, and once the fault is gone a resume must give the uninterrupted bytes without a word about a
corrupt checkpoint. Needs root: root ignores folder modes, so read-only is `chattr +i`, and the full disk is a small
tmpfs.
"""

import argparse
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from soak import RUN, Ended, differences, ended, results, stage, start, whole_run, write_config


def full_disk(home: Path, seconds: float, sizes: dict[str, int], chance: random.Random) -> Ended:
    """The run's folder on a disk that is too small, which then grows."""
    (home / RUN).mkdir()
    size = chance.randrange(8, sizes["kib"])
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(home / RUN)], check=True)
    found = ended(start(home), home)
    subprocess.run(["mount", "-o", f"remount,size={20 * sizes['kib']}k", str(home / RUN)], check=True)
    return found


def long_files(home: Path, seconds: float, sizes: dict[str, int], chance: random.Random) -> Ended:
    """No file may grow beyond a limit (RLIMIT_FSIZE), as on a disk with quotas."""
    limit = chance.randrange(1024, sizes["largest"])
    return ended(start(home, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))), home)


def read_only(home: Path, seconds: float, sizes: dict[str, int], chance: random.Random) -> Ended:
    """Every folder of the run can no longer be written to from some moment on."""
    process = start(home)
    wait_in_run(home, chance.uniform(0, 0.8 * seconds))
    subprocess.run(["chattr", "-R", "+i", str(home / RUN)], check=True)
    found = ended(process, home)
    subprocess.run(["chattr", "-R", "-i", str(home / RUN)], check=True)
    return found


def vanished(home: Path, seconds: float, sizes: dict[str, int], chance: random.Random) -> Ended:
    """The run's folder is moved away, and comes back when the process has ended."""
    process = start(home)
    wait_in_run(home, chance.uniform(0, 0.8 * seconds))
    (home / RUN).rename(home / "elsewhere")
    found = ended(process, home)
    shutil.rmtree(home / RUN, ignore_errors=True)
    (home / "elsewhere").rename(home / RUN)
    return found


def removed(home: Path, seconds: float, sizes: dict[str, int], chance: random.Random) -> Ended:
    """The run's folder is deleted for good; what a resume finds is an empty place to start at."""
    process = start(home)
    wait_in_run(home, chance.uniform(0, 0.8 * seconds))
    shutil.rmtree(home / RUN, ignore_errors=True)
    found = ended(process, home)
    shutil.rmtree(home / RUN, ignore_errors=True)
    return found


def wait_in_run(home: Path, seconds: float) -> None:
    """Wait until the run's folder holds something, then so many seconds."""
    while not (home / RUN / "config.yaml").exists():
        time.sleep(0.01)
    time.sleep(seconds)


FAULTS: dict[str, Callable[..., Ended]] = {
    "full disk": full_disk,
    "files too long": long_files,
    "read-only": read_only,
    "vanished": vanished,
    "removed": removed,
}


def complaints(fault: Ended, resumed: Ended, whole: dict[str, Any], home: Path) -> list[str]:
    """What is not as it must be."""
    wrong = []
    if fault.code not in (2, 3) or len(fault.errors) != 1 or "Traceback" in fault.stderr:
        wrong.append(f"the fault ended with {fault.code}, {fault.errors}, traceback: {'Traceback' in fault.stderr}")
    if "corrupt" in resumed.stderr:
        wrong.append("a checkpoint was corrupt")
    if resumed.code:
        return [*wrong, f"the resume ended with {resumed.code}, {resumed.errors}"]
    other = differences(whole, results(home / RUN))
    return [*wrong, f"differs: {other}"] if other else wrong


def main() -> None:
    """Each fault at several moments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("WORK", type=Path, help="folder to make for the runs; those with complaints stay in it")
    parser.add_argument("--times", type=int, default=2, help="moments of each fault")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=FAULTS, help="one kind of fault")
    options = parser.parse_args()
    work, chance, good, count = options.WORK.resolve(), random.Random(options.seed), 0, 0
    whole, seconds, _ = whole_run(work / "whole")
    files = [path.stat().st_size for path in (work / "whole" / RUN).rglob("*") if path.is_file()]
    sizes = {"kib": sum(-(-size // 4096) * 4 for size in files), "largest": max(files)}
    print(f"uninterrupted: {seconds:.1f} s, {sizes['kib']} KiB, largest file {sizes['largest']} bytes", flush=True)
    for name, fault in FAULTS.items():
        for time_number in range(options.times if options.only in (None, name) else 0):
            home = work / f"{name.replace(' ', '-')}-{time_number}"
            write_config(home)
            found = fault(home, seconds, sizes, chance)
            where = stage(home / RUN)
            resumed = ended(start(home), home)
            wrong = complaints(found, resumed, whole, home)
            count, good = count + 1, good + (not wrong)
            print(
                f"{name} ({where}): exit {found.code}, {' / '.join(found.errors)}: {wrong or 'resumed equal'}",
                flush=True,
            )
            subprocess.run(["umount", str(home / RUN)], stderr=subprocess.DEVNULL, check=False)
            if not wrong:
                shutil.rmtree(home)
    print(f"{good} of {count} faults ended with one error line and resumed to the uninterrupted bytes")
    sys.exit(good != count)


if __name__ == "__main__":
    main()
