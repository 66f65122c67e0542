"""The battery's truth: layouts of each setting really trained, one after the other: python benchmarks/battery_truth.py
D1 D2, or --all

Every setting first gets its first twenty layouts, then the next, in the order D1 to H6, so that half-made tables are of
use. A layout: the interleaved one, random ones within the budget (or all there are), a few just above, then a local
search from the best. Tables are `battery/ID.csv`, a row a training. Any signal may stop it (SIGTERM after the training
in flight; SIGKILL loses that one), and the same command goes on. `ID --layout PATTERN` trains a layout that a method
has come to. One thread; `--rows 20` stops every setting there.
"""

import argparse
import dataclasses
import math
import random
import sys
import time
from pathlib import Path

import torch
from battery_settings import ABOVE, LOCAL, SETTINGS, Setting, find_setting
from battery_tables import RUNGS, TABLES, Row, Truth, append_row, load_truth, read_rows

from derive import Architecture
from derive.strict_json import read_json, write_json
from nas.config.sections import Config, DataConfig, ModelConfig, RetrainConfig, RunConfig, SearchConfig
from nas.machine.process import versions
from nas.machine.startup import restart_prepared
from nas.machine.stop import StopFlag, Stopped
from nas.training.evaluation import evaluate
from nas.training.setup import Setup, open_setup
from nas.training.train import build_training, train_step
from supernet.errors import RunFailed

DATA = Path("/work/shared/data")
PATHS = {  # corpus -> data.name, and where it lies below --data
    "sotu": ("sotu", None),
    "enwik8": ("enwik8", "enwik8"),
    "tiny-shakespeare": ("text", "tiny-shakespeare/input.txt"),
    "wikitext": ("text", "wikitext-103/wiki.valid.tokens"),  # the official training text is not to hand
}
FINAL_TOKENS, RUNG_TOKENS = 65536, 16384  # of the final evaluation, and of each rung
ROUNDS = (1, 20, 40, 10**6)  # layouts that each setting has before any has more
NEAR = 1.25  # times the budget, up to which a layout is just above it


def configuration(setting: Setting, data: Path = DATA) -> Config:
    """A setting as the project's configuration; the search's settings are the defaults."""
    name, path = PATHS[setting.corpus]
    config = Config(
        run=RunConfig(device="cpu", log_every=20, checkpoint_every=10**6),
        data=DataConfig(
            name=name, path=path and str(data / path), seq_len=setting.seq_len, batch_size=setting.batch_size
        ),
        model=ModelConfig(layers=setting.layers, d_model=setting.d_model, heads=setting.heads, d_inner=setting.d_inner),
        search=SearchConfig(blocks=list(setting.candidates), budget=setting.budget),
        retrain=RetrainConfig(
            steps=setting.steps,
            lr=setting.lr,
            evaluate_every=10**6,
            final_tokens=FINAL_TOKENS,
            rung_tokens=RUNG_TOKENS,
            rungs=[share / 100 for share in RUNGS[:-1]],
        ),
    )
    config.check()
    return config


def architecture_of(setting: Setting, pattern: str) -> Architecture:
    """A layout as the record that is built from."""
    layers = tuple(setting.space.candidate(letter) for letter in setting.space.network(pattern))
    return Architecture("layout", setting.model.task, setting.model, layers)


def train_layout(setup: Setup, arch: Architecture, seed: int) -> dict[str, float]:
    """One training as nas.training.train does it, to the bit, without its files: the measured columns of Row."""
    retrain = setup.config.retrain
    found = dict.fromkeys(("loss", "standard_error"), math.inf)
    found |= {f"rung_{share}": math.inf for share in RUNGS}
    started = time.process_time()
    state = build_training(arch, setup, seed)
    state.model.train()
    try:
        for share in RUNGS:
            while state.step < max(1, round(share / 100 * retrain.steps)):
                train_step(state, setup, seed)
            reached = evaluate(state.model, setup, "alphas", limit=retrain.rung_tokens)
            found[f"rung_{share}"] = reached.loss
    except RunFailed as failure:
        print(f"{arch.pattern} seed {seed}: {failure}", file=sys.stderr)
    found["seconds"] = time.process_time() - started
    if math.isfinite(found[f"rung_{RUNGS[-1]}"]):
        final = evaluate(state.model, setup, "held_out", limit=retrain.final_tokens)
        found |= {"loss": final.loss, "standard_error": final.standard_error}
    return found


def planned(setting: Setting) -> list[tuple[str, str]]:
    """(pattern, origin) of all layouts but the local search's, in the order in which they are trained."""
    space, budget = setting.space, setting.budget
    source = random.Random(f"{setting.id} layouts")
    within = space.draw_several(source, setting.networks or space.count(budget), most=budget)
    near = NEAR * budget
    while space.count(near, least=budget) < min(ABOVE, space.count(least=budget)):
        near *= NEAR
    above = space.draw_several(source, ABOVE, most=near, least=budget)
    plan = [(space.network(("sf" * setting.layers)[: setting.layers]), "interleaved")]
    plan += [(pattern, "random") for pattern in within]
    for number, pattern in enumerate(above, start=1):
        plan.insert(12 * number, (pattern, "above"))
    return list(dict.fromkeys(plan))


def local_step(setting: Setting, truth: Truth) -> str | None:
    """A neighbour, within the budget, of the best layout so far that has not been trained, or of the next best."""
    source = random.Random(f"{setting.id} local {len(truth.rows)}")
    for pattern in truth.within:
        fresh = [other for other in setting.space.neighbours(pattern, setting.budget) if other not in truth.rows]
        if fresh:
            return source.choice(fresh)
    return None


def next_layout(setting: Setting, folder: Path) -> tuple[str, str] | None:
    """What to train next, by what stands in the table alone; None when the setting is done."""
    truth, known = load_truth(setting, folder), {row.pattern for row in read_rows(folder / f"{setting.id}.csv")}
    for pattern, origin in planned(setting):
        if pattern not in truth.rows:
            return pattern, origin
    if started := sorted(known - set(truth.rows)):  # a kill between two seeds
        return started[0], "local"
    done = len(truth.origin("local"))
    found = local_step(setting, truth) if setting.networks and done < LOCAL else None
    return found and (found, "local")


class Trainer:
    """Trains layouts of one setting into its table."""

    def __init__(self, setting: Setting, folder: Path = TABLES, data: Path = DATA):
        self.setting, self.folder = setting, folder
        self.setup = open_setup(configuration(setting, data))
        folder.mkdir(parents=True, exist_ok=True)
        self._describe()

    def _describe(self) -> None:
        """Write what is trained on what beside the table; ValueError where the table is of something else."""
        path = self.folder / f"{self.setting.id}.json"
        told = {
            "setting": {**dataclasses.asdict(self.setting), "candidates": list(self.setting.candidates)},
            "letters": self.setting.space.labels,
            "data": self.setup.corpus.to_json(),
            "retrain": dataclasses.asdict(self.setup.config.retrain),
        }
        if path.exists():
            before = {key: read_json(path)[key] for key in told}
            if before != told:
                wrong = ", ".join(key for key in told if before[key] != told[key])
                raise ValueError(f"{path}: the table is of another {wrong}; move it away or leave it as it is")
        else:
            write_json(path, {**told, "versions": versions(), "command": f"battery_truth.py {self.setting.id}"})

    def train(self, pattern: str, origin: str, stop: StopFlag) -> None:
        """Train a layout with every seed that the table lacks."""
        space, path = self.setting.space, self.folder / f"{self.setting.id}.csv"
        pattern = space.network(pattern)
        done = {(row.pattern, row.seed) for row in read_rows(path)}
        for seed in range(self.setting.seeds):
            if (pattern, seed) in done:
                continue
            arch = architecture_of(self.setting, pattern)
            with stop.deferred():
                found = train_layout(self.setup, arch, seed)
                append_row(path, Row(pattern, space.cost(pattern), origin, seed, **found))
            print(
                f"{time.strftime('%H:%M:%S')} {self.setting.id} {pattern} {origin} seed {seed} "
                f"cost {space.cost(pattern):.3f} loss {found['loss']:.4f} {found['seconds']:.1f} CPU s",
                flush=True,
            )


def train_all(settings: list[Setting], folder: Path, data: Path, stop: StopFlag, *, rows: int = 10**6) -> None:
    """Round after round every setting gets its next layouts, each at most `rows`."""
    trainers = {setting.id: Trainer(setting, folder, data) for setting in settings}
    for size in sorted({min(size, rows) for size in ROUNDS}):
        for setting in settings:
            while len(load_truth(setting, folder).rows) < size and (found := next_layout(setting, folder)):
                trainers[setting.id].train(*found, stop)


def main() -> None:
    """Parse the command and train."""
    restart_prepared()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="*", metavar="ID", help="such as D1")
    parser.add_argument("--all", action="store_true", help="every setting, development first")
    parser.add_argument("--layout", action="append", default=[], help="train this layout of the one setting named")
    parser.add_argument("--rows", type=int, default=10**6, help="layouts that each setting has at most")
    parser.add_argument("--folder", type=Path, default=TABLES, help="of the tables")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the texts")
    options = parser.parse_args()
    try:
        settings = list(SETTINGS) if options.all else [find_setting(name) for name in options.settings]
    except KeyError as error:
        parser.error(error.args[0])
    if not settings or (options.layout and len(settings) != 1):
        parser.error("name settings, or --all; with --layout exactly one")
    torch.set_num_threads(1)
    stop = StopFlag().install()
    try:
        for pattern in options.layout:
            network = settings[0].space.network(pattern)
            origin = dict(planned(settings[0])).get(network, "asked")
            Trainer(settings[0], options.folder, options.data).train(network, origin, stop)
        if not options.layout:
            train_all(settings, options.folder, options.data, stop, rows=options.rows)
    except Stopped as stopped:
        sys.exit(stopped.exit_code)


if __name__ == "__main__":
    main()
