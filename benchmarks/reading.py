"""What reading enwik8 costs: python benchmarks/reading.py FOLDER

FOLDER holds `enwik8` unpacked. Each form (the file, a zip, an xz) is read by a process of its own, the first time with
an empty cache and then again. Prints seconds of `load_corpus`, by the clock and of computing, and peak memory of that
process, with what Python and NumPy take before.
"""

import argparse
import lzma
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

READ = """
import resource, sys, time, types
from nas.data.corpus import load_corpus
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
name, path, tokens = sys.argv[1:]
started, worked = time.perf_counter(), time.process_time()
corpus = load_corpus(types.SimpleNamespace(name=name, path=path, tokens=tokens, seq_len=512))
seconds, work = time.perf_counter() - started, time.process_time() - worked
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
memory = f"{peak / 1024:4.0f} MB at most ({before / 1024:.0f} MB before)"
words = f"{len(corpus.tokens):,} tokens, vocabulary {corpus.vocab_size:,}"
print(f"{seconds:6.2f} s ({work:5.2f} s of a core)  {memory}  {words}")
"""
CHUNK = 2**22


def pack(source: Path, folder: Path) -> list[Path]:
    """The file as a zip and as an xz, both quick to make."""
    zipped, xzed = folder / f"{source.name}.zip", folder / f"{source.name}.xz"
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        archive.write(source, source.name)
    with source.open("rb") as file, lzma.open(xzed, "wb", preset=1) as target:
        while block := file.read(CHUNK):
            target.write(block)
    return [zipped, xzed]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", nargs="+", default=["bytes", "chars"])
    options = parser.parse_args()
    whole = options.folder / "enwik8"
    with tempfile.TemporaryDirectory() as work:
        for path in [whole, *pack(whole, Path(work))]:
            for tokens in options.tokens:
                with tempfile.TemporaryDirectory() as cache:
                    for when in ("first", "again", "again"):
                        command = [sys.executable, "-c", READ, "enwik8", str(path), tokens]
                        environment = {**os.environ, "XDG_CACHE_HOME": cache, "OMP_NUM_THREADS": "1"}
                        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                        print(f"{path.name:<10}  {tokens:<5}  {when}  {done.stdout.strip()}", flush=True)


if __name__ == "__main__":
    main()
