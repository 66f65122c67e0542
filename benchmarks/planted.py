"""Corpora whose right block follows from how they are made, and whether the search names it: python
benchmarks/planted.py WORK

For each corpus the fixed layouts of `truth` are trained first, to show that the answer is true at this size; then the
default search runs with three seeds, and its probabilities and derived files are held against the answer. WORK keeps
corpora and runs.
"""

import argparse
import os
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from derive import Architecture, derive_architectures
from derive.strict_json import read_json, write_json
from nas.config.sections import Config, DataConfig, ModelConfig, RetrainConfig, RunConfig, SearchConfig
from nas.machine.process import run_jobs
from nas.machine.stop import StopFlag
from nas.stages.jobs import retrain_job
from nas.stages.pipeline import search_only

SIZE = 2**20  # bytes of a corpus
NOISE = 0.1  # share of bytes that follow no rule
BLOCKS = ["self_attention", "random_synthesizer", "feed_forward", "identity"]


def from_current(generator: np.random.Generator, cycles: int = 11) -> np.ndarray:
    """The next byte is a fixed permutation of the current one, made of cycles of three.

    Without a block the logits are almost symmetric, as one matrix is embedding and head, and a cycle of three has a
    direction. But embeddings can be learned so that a linear map is enough, and every block that can look at its own
    position has one: nothing but cost tells them apart. So CORPORA makes feed-forward the only block that the budget
    has room for.
    """
    order = generator.permutation(3 * cycles).reshape(-1, 3)
    permutation = np.empty(order.size, dtype=int)
    permutation[order] = np.roll(order, -1, axis=1)
    return _chain(generator, lambda text, t: permutation[text[t - 1]], symbols=order.size)


def from_behind(generator: np.random.Generator, distance: int = 5) -> np.ndarray:
    """The next byte is the one `distance` places back."""
    return _chain(generator, lambda text, t: text[t - distance], symbols=32)


def from_two(generator: np.random.Generator, near: int = 2, far: int = 5, symbols: int = 8) -> np.ndarray:
    """The next byte stands in a random table at two bytes at fixed distances: a map fetches them, feed-forward reads
    the table."""
    table = generator.integers(0, symbols, (symbols, symbols))
    return _chain(generator, lambda text, t: table[text[t - near], text[t - far]], symbols=symbols)


def recall(
    generator: np.random.Generator, keys: int = 16, values: int = 8, pairs: int = 4, questions: int = 8
) -> np.ndarray:
    """Sequences of pairs of a fresh key and value (one byte tells both), then questions (a key) and answers (its
    value)."""
    rows = SIZE // (pairs + 2 * questions)
    chosen = generator.permuted(np.tile(np.arange(keys), (rows, 1)), axis=1)[:, :pairs]
    meaning = generator.integers(0, values, (rows, pairs))
    asked = generator.integers(0, pairs, (rows, questions))
    question = keys * values + np.take_along_axis(chosen, asked, axis=1)
    answer = keys * values + keys + np.take_along_axis(meaning, asked, axis=1)
    return np.concatenate(
        (chosen * values + meaning, np.stack((question, answer), axis=2).reshape(rows, -1)), axis=1
    ).ravel()


def nothing(generator: np.random.Generator) -> np.ndarray:
    """Random bytes."""
    return generator.integers(0, 256, SIZE)


def _chain(generator: np.random.Generator, rule: Callable[[np.ndarray, int], int], symbols: int) -> np.ndarray:
    """A text of `symbols` byte values whose byte t is rule(text, t), or any at all with probability NOISE."""
    text = generator.integers(0, symbols, SIZE)
    followed = generator.random(SIZE) >= NOISE
    for t in range(16, SIZE):
        if followed[t]:
            text[t] = rule(text, t)
    return text


@dataclass(frozen=True)
class Planted:
    """A corpus, layouts that show what it needs, and whether a derived pattern is right, given whether the search says
    converged."""

    make: Callable[[np.random.Generator], np.ndarray]
    answer: str
    truth: tuple[str, ...]
    right: Callable[[str, bool], bool]
    d_inner: int = ModelConfig.d_inner
    budget: float | None = SearchConfig.budget


CORPORA = {
    # of the interleaved cost; a feed-forward block costs 0.07, a random map 0.21
    "current": Planted(
        from_current,
        "feed-forward alone",
        ("fiii", "ffii", "riii", "siii", "iiii"),
        lambda p, _: "f" in p and not set("sr") & set(p),
        d_inner=32,
        budget=0.2,
    ),
    "behind": Planted(
        from_behind,
        "a random map, no self-attention",
        ("ffii", "riii", "siii", "rrii", "sfsf"),
        lambda p, _: "r" in p and "s" not in p,
    ),
    "two": Planted(
        from_two,
        "a map, then feed-forward",
        ("ffii", "rfii", "frii", "rrii", "sfii"),
        lambda p, _: bool(re.search("[rs].*f", p)),
    ),
    "recall": Planted(recall, "self-attention", ("ffii", "rfrf", "siii", "sfii", "sfsf"), lambda p, _: "s" in p),
    "nothing": Planted(nothing, "no answer: not converged", ("ffii", "siii"), lambda _, converged: not converged),
}


def configuration(name: str, work: Path, *, folder: Path | None = None, steps: int = 1, workers: int = 2) -> Config:
    """The default search on another text, four layers of one candidate of each role; `steps` are those of the fixed
    layouts."""
    planted = CORPORA[name]
    return Config(
        run=RunConfig(dir=folder and str(folder), device="cpu", workers=workers, log_every=20, checkpoint_every=10**6),
        data=DataConfig(name="text", path=str(make_corpus(name, work))),
        model=ModelConfig(layers=4, d_inner=planted.d_inner),
        search=SearchConfig(blocks=BLOCKS, budget=planted.budget),
        retrain=RetrainConfig(steps=steps, evaluate_every=10**6, final_tokens=65536),
    )


def make_corpus(name: str, work: Path) -> Path:
    """The corpus as a file, made once."""
    path = work / f"{name}.bin"
    if not path.exists():
        work.mkdir(parents=True, exist_ok=True)
        path.write_bytes(CORPORA[name].make(np.random.default_rng(1)).astype(np.uint8).tobytes())
    return path


def show_truth(name: str, work: Path, config: Config, seeds: int, stop: StopFlag) -> None:
    """Losses of the fixed layouts: the mean of the seeds and, behind it, half of what they span."""
    model = config.model.settings(256, config.data.seq_len)
    architectures = [Architecture.from_pattern(pattern, model=model) for pattern in CORPORA[name].truth]
    homes = {
        arch.pattern: [work / name / "truth" / f"{arch.pattern}-{seed}" for seed in range(seeds)]
        for arch in architectures
    }
    jobs = [(config, arch, home, seed) for arch in architectures for seed, home in enumerate(homes[arch.pattern])]
    run_jobs(retrain_job, jobs, config.run.workers, stop)
    print(f"{name}: {CORPORA[name].answer}; alone, {config.retrain.steps} steps, seeds: {seeds}", flush=True)
    for arch in architectures:
        losses = [read_json(home / "result.json")["held_out_loss"] for home in homes[arch.pattern]]
        spread = f" +- {(max(losses) - min(losses)) / 2:.3f}" if seeds > 1 else ""
        print(
            f"  {arch.pattern} {statistics.mean(losses):.3f}{spread}, cost "
            f"{arch.relative_flops(config.data.seq_len):.2f}",
            flush=True,
        )


def search_for(name: str, config: Config, stop: StopFlag) -> None:
    """Search with three seeds; what each seed's probabilities and derived file say."""
    folder, planted = Path(config.run.dir), CORPORA[name]
    if not (folder / "agreement.json").exists():
        started, used = time.perf_counter(), sum(os.times()[:4])
        search_only(config, stop)
        write_json(
            folder / "minutes.json",
            {"wall": (time.perf_counter() - started) / 60, "cpu": (sum(os.times()[:4]) - used) / 60},
        )
    minutes = read_json(folder / "minutes.json")
    found = []
    for home in sorted(folder.glob("seed-*")):
        derived = derive_architectures(home)
        table = read_json(home / "probabilities.json")
        patterns = [derived[which].pattern for which in ("argmax", "budget")]
        converged = table["verdict"]["converged"]
        found.append(all(planted.right(pattern, converged) for pattern in patterns))
        told = f"argmax {patterns[0]}, budget {patterns[1]}, {'' if converged else 'not '}converged"
        print(f"  {home.name}: {told}: {'right' if found[-1] else 'WRONG'}")
    print(
        f"  {sum(found)} of {len(found)} right, {minutes['wall']:.1f} minutes, {minutes['cpu']:.1f} of a core",
        flush=True,
    )


def main() -> None:
    """Truth and search of each corpus."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--corpora", nargs="+", choices=list(CORPORA), default=list(CORPORA))
    parser.add_argument("--steps", type=int, default=1200, help="of the fixed layouts' trainings; 0: leave them out")
    parser.add_argument("--seeds", type=int, default=3, help="of the fixed layouts' trainings")
    parser.add_argument("--workers", type=int, default=2, help="trainings or searches at a time")
    options = parser.parse_args()
    stop = StopFlag().install()
    for name in options.corpora:
        config = configuration(
            name, options.work, folder=options.work / name / "search", steps=options.steps or 1, workers=options.workers
        )
        if options.steps:
            show_truth(name, options.work, config, options.seeds, stop)
        search_for(name, config, stop)


if __name__ == "__main__":
    main()
