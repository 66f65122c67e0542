"""Any bytes give a valid object or the documented error: python benchmarks/fuzz.py [--minutes 10] [--seed 0] [--only
WORD]

Every reader of a file that nobody vouches for (tests/hostile.py lists them) is fed mutated valid files, nested junk and
arbitrary bytes, for the same time each. What is neither accepted nor refused with a UserError is printed with the place
it came from, and its bytes are kept. Memory is limited to 4 GB. Exit code 1 where anything was found.
"""

import argparse
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from hostile import PAGES, READERS, Reader, prepare  # noqa: E402

from supernet.errors import UserError  # noqa: E402

SLOW_SECONDS = 5.0  # of processor time, which one file may not take longer; a page with its pictures takes two
MEMORY = 4 * 2**30
BATCH = 50  # examples between two looks at the clock


def place_of(error: BaseException) -> str:
    """Type and the last line of this project that an exception came through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(str(ROOT))]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__} at {where}: {' '.join(str(error).split())[:100]}"


def fuzz(home: Path, reader: Reader, seconds: float, first_seed: int) -> tuple[Counter[str], dict[str, bytes]]:
    """Counts of what came out (accepted, refused, or the failure's place), and an example of each failure."""
    path = home / reader.file
    valid, found, examples = path.read_bytes(), Counter(), {}
    strategy, end, number = reader.mutations(valid), time.monotonic() + seconds, first_seed

    def try_one(data: bytes) -> None:
        if time.monotonic() > end:
            return
        path.write_bytes(data)
        began = time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                reader.read(home)
            outcome = "accepted"
        except UserError:
            outcome = "refused"
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # panics of compiled packages are no Exception
            outcome = place_of(error)
        if time.process_time() - began > SLOW_SECONDS:
            outcome = f"slow ({outcome})"
        if outcome not in found and outcome not in ("accepted", "refused"):
            examples[outcome] = data
        found[outcome] += 1

    while time.monotonic() < end:
        number += 1
        checks = list(HealthCheck)
        run = settings(
            max_examples=BATCH, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=checks
        )
        seed(number)(run(given(strategy)(try_one)))()
    path.write_bytes(valid)
    reader.read(home)  # nothing that was tried has left anything behind
    return found, examples


def main() -> None:
    """Fuzz reader after reader."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all readers together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="readers with this word in their name")
    parser.add_argument("--keep", type=Path, help="folder for an example of each failure")
    options = parser.parse_args()
    readers = {name: reader for name, reader in {**READERS, **PAGES}.items() if options.only in name}
    seconds, tried, failed = 60 * options.minutes / len(readers), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        home = prepare(Path(folder))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        for name, reader in readers.items():
            found, examples = fuzz(home, reader, seconds, options.seed)
            failures = {outcome: count for outcome, count in found.items() if outcome not in ("accepted", "refused")}
            tried, failed = tried + found.total(), failed + sum(failures.values())
            print(
                f"{name:<24} {found.total():>7} tried, {found['accepted']:>6} accepted, {found['refused']:>6} refused, "
                f"{sum(failures.values())} failed",
                flush=True,
            )
            for number, (outcome, count) in enumerate(failures.items()):
                print(f"    {count} x {outcome}", flush=True)
                if options.keep:
                    options.keep.mkdir(parents=True, exist_ok=True)
                    (options.keep / f"{name.replace(' ', '_')}-{number}").write_bytes(examples[outcome])
    print(f"{len(readers)} readers, {tried} examples, {failed} failures")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
