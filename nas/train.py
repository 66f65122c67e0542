"""Plain training and evaluation of one architecture."""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

from derive import Architecture, build
from derive.strict_json import dumps_line, write_atomic
from nas.batches import Batch, evaluation_batches, evaluation_segments, training_batch
from nas.checkpoint import MetricsLog
from nas.config import Config, DataConfig
from nas.data import Corpus, load_corpus
from nas.distributed import stop_asked
from nas.losses import carried, logits_and_memory, part_losses, tokens_to
from nas.machine import Machine, compile_each
from nas.optimizers import build_adamw, learning_rate
from nas.process import seed_dropout, seed_from
from nas.sharding import shard, whole_weights
from nas.stop import StopFlag
from nas.train_state import NotFinite, StepClock, TrainState, go_back, resume, save_state
from supernet.backbone import Network
from supernet.errors import UserError


@dataclass(frozen=True)
class Evaluation:
    """Mean loss in nats a token over `tokens` targets, and the standard error of that mean over its blocks of text."""

    loss: float
    standard_error: float
    tokens: int
    block_losses: tuple[float, ...] = ()


def evaluate(
    model: nn.Module,
    corpus: Corpus,
    part: str,
    config: Config,
    machine: Machine,
    *,
    limit: int | None = None,
    gates: Tensor | None = None,
) -> Evaluation:
    """Loss of the model on a part of the text, every target once, or on `limit` targets spread evenly over it."""
    was_training = model.training
    model.eval()
    losses: list[float] = []
    counts: list[int] = []
    memory = None
    with torch.no_grad(), span_of(model, config.data):
        for batch in batches_of(model, corpus, part, config, limit):
            inputs, targets = tokens_to(batch.tokens, machine.device)
            with machine.autocast():
                logits, memory = logits_and_memory(
                    model(inputs, *(() if gates is None else (gates,)), **carried(memory, batch))
                )
            by_token = functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
            by_row = by_token.view(targets.shape).double().mean(dim=1)
            losses += by_row.tolist()
            counts += [targets.shape[1]] * len(targets)
    model.train(was_training)
    mean = float(np.average(losses, weights=counts))
    error = float(np.std(losses, ddof=1) / math.sqrt(len(losses))) if len(losses) > 1 else math.inf
    return Evaluation(mean, error, sum(counts), tuple(losses))


def batches_of(model: nn.Module, corpus: Corpus, part: str, config: Config, limit: int | None) -> Iterator[Batch]:
    """The batches that a model is evaluated on: rows that go on where it has a memory, blocks that stand alone
    otherwise."""
    seq_len = config.data.eval_seq_len or config.data.seq_len if isinstance(model, Network) else config.data.seq_len
    rows = max(1, 8192 // seq_len)  # tokens that a CPU's cache and a small GPU both like
    memory_len = getattr(model, "memory_len", 0)
    if memory_len:
        return evaluation_segments(corpus, part, seq_len=seq_len, rows=rows, memory_len=memory_len, limit=limit)
    blocks = evaluation_batches(corpus, part, seq_len=seq_len, batch_size=rows, limit=limit)
    return (Batch(block, True) for block in blocks)


@contextlib.contextmanager
def span_of(model: nn.Module, data: DataConfig) -> Iterator[None]:
    """Within, a network remembers and measures distances as `data.eval_memory_len` and `data.eval_clamp_len` say.

    A supernet does as it trains, since its probabilities are of that.
    """
    if not isinstance(model, Network):
        yield
        return
    before = model.memory_len, model.clamp_len
    model.set_span(before[0] if data.eval_memory_len is None else data.eval_memory_len, data.eval_clamp_len)
    try:
        yield
    finally:
        model.set_span(*before)


def model_seed(seed: int) -> int:
    """Seed of the initial weights of a retraining."""
    return seed_from(seed, "retrain", "initial weights")


def train_architecture(
    arch: Architecture, config: Config, folder: Path, seed: int, *, machine: Machine, stop: StopFlag, slot: int = 0
) -> None:
    """Train from scratch into `folder`: `architecture.json`, `metrics.jsonl`, `model.safetensors`, `result.json`.

    Goes on from the folder's checkpoint where there is one; a finished training is left as it is. The data of step k
    depends on (seed, k) alone, so every architecture sees the same text.
    """
    if (folder / "result.json").exists():
        trained = Architecture.load(folder / "architecture.json")
        if (trained.layers, trained.model) != (arch.layers, arch.model):
            raise UserError(
                f"{folder}: holds the training of another layout of the name {arch.name!r}, {trained.pattern}; give "
                "another "
                "run.dir, or another name in the file"
            )
        return
    corpus = load_corpus(config.data)
    state = _train(arch, config, corpus, folder, seed, machine, stop, slot, until=config.retrain.steps)
    save_weights(state.model, folder / "model.safetensors")
    final = evaluate(state.model, corpus, "held_out", config, machine, limit=config.retrain.final_tokens)
    write_result(folder, final, state.step, corpus)
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        (folder / name).unlink(missing_ok=True)  # the weights are saved, and nothing is left to go on with


def train_to_rung(
    arch: Architecture,
    config: Config,
    folder: Path,
    seed: int,
    step: int,
    *,
    machine: Machine,
    stop: StopFlag,
    slot: int = 0,
) -> None:
    """Train up to `step`, leave a checkpoint to go on from and `rung-STEP.json` with the loss on the `alphas` part."""
    corpus = load_corpus(config.data)
    state = _train(arch, config, corpus, folder, seed, machine, stop, slot, until=step)
    save_state(state, folder, machine)
    reached = evaluate(state.model, corpus, "alphas", config, machine, limit=config.retrain.rung_tokens)
    line = {"step": step, "loss": reached.loss, "standard_error": reached.standard_error}
    write_atomic(folder / f"rung-{step}.json", dumps_line(line).encode("utf-8"))


def _train(
    arch: Architecture,
    config: Config,
    corpus: Corpus,
    folder: Path,
    seed: int,
    machine: Machine,
    stop: StopFlag,
    slot: int,
    *,
    until: int,
) -> TrainState:
    """Train up to step `until`, from the folder's checkpoint where there is one; writes `architecture.json` and the
    metrics."""
    settings = config.retrain
    folder.mkdir(parents=True, exist_ok=True)
    arch.save(folder / "architecture.json")
    state = build_training(arch, config, seed, machine)
    resume(state, folder, machine)
    progress = tqdm(total=until, initial=state.step, desc=f"{arch.name} seed {seed}", position=slot, mininterval=1.0)
    clock = StepClock(state.step)
    with MetricsLog(folder / "metrics.jsonl", state.step) as metrics, progress, stop.deferred():
        while state.step < until:
            try:
                with clock:
                    loss = train_step(state, config, corpus, machine, seed)
            except NotFinite as failure:
                state = go_back(state, partial(build_training, arch, config, seed, machine), folder, machine, failure)
                metrics.cut(state.step)
                clock = StepClock(state.step)
                continue
            progress.update(state.step - progress.n)
            last = state.step == settings.steps
            if state.step == 1 or last or state.step % config.run.log_every == 0:
                speed = (
                    clock.steps_per_second(state.step, machine)
                    * machine.world
                    * config.data.batch_size
                    * config.data.seq_len
                )
                held_out = None
                if last or passes(state.step, settings.evaluate_every, config.run.log_every):
                    held_out = evaluate(
                        state.model, corpus, "held_out", config, machine, limit=settings.evaluate_tokens
                    ).loss
                metrics.write(
                    step=state.step,
                    phase="retrain",
                    loss=float(loss),
                    held_out_loss=held_out,
                    tokens_per_second=round(speed, 1),
                )
                progress.set_postfix(loss=float(loss), refresh=False)
            if state.step % config.run.checkpoint_every == 0 and not last:
                save_state(state, folder, machine)
            if stop_asked(machine, stop):
                save_state(state, folder, machine)
                stop.check()
    return state


def build_training(arch: Architecture, config: Config, seed: int, machine: Machine) -> TrainState:
    """A new network and its optimizer."""
    torch.manual_seed(model_seed(seed))
    model = build(arch).to(machine.device)
    if config.run.compile:
        compile_each(model.layers)
    if config.run.shard:
        shard(model, machine)
    return TrainState(model, build_adamw(model, config.retrain.lr, config.retrain.weight_decay), machine.scaler())


def passes(step: int, every: int, log_every: int) -> bool:
    """Whether a multiple of `every` lies behind the logged step before this one and not behind this one."""
    return step // every > (step - 1) // log_every * log_every // every


def train_step(state: TrainState, config: Config, corpus: Corpus, machine: Machine, seed: int) -> Tensor:
    """One AdamW step on the `weights` part; returns the loss. A non-finite step changes nothing and is counted."""
    settings, step = config.retrain, state.step
    seed_dropout(machine, seed, "retrain", "dropout", step)
    batch = training_batch(
        corpus,
        "weights",
        config.data,
        machine,
        memory_len=state.model.memory_len,
        seed=seed,
        step=step,
        stream="retrain",
        segment=step,
    )
    state.model.recompute = config.run.recompute == "all"
    losses = part_losses(state.model, batch, machine, size=config.data.micro_batch_size, memory=state.memory)
    rate = settings.lr * learning_rate(step, settings.steps)
    return state.descend(losses, rate, settings.clip, machine, last=step + 1 == settings.steps)


def write_result(folder: Path, final: Evaluation, steps: int, corpus: Corpus) -> None:
    """`result.json`, the mark of a finished training: loss, its standard error, tokens, steps and vocabulary."""
    line = {
        "steps": steps,
        "held_out_loss": final.loss,
        "standard_error": final.standard_error,
        "tokens": final.tokens,
        "vocabulary_id": corpus.vocabulary_id,
    }
    write_atomic(folder / "result.json", dumps_line(line).encode("utf-8"))


def save_weights(model: nn.Module, path: Path) -> None:
    """Every parameter and buffer as safetensors, written whole or not at all."""
    state = {name: value.detach().contiguous().cpu() for name, value in whole_weights(model).items()}
    temporary = path.with_name(f".{path.name}.tmp")
    save_file(state, temporary)
    temporary.replace(path)


def load_weights(model: nn.Module, path: Path) -> None:
    """Load `model.safetensors` with strict keys; UserError names the file when it does not fit."""
    try:
        model.load_state_dict(load_file(path))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except Exception as error:
        first = " ".join(str(error).split())[:300]
        raise UserError(f"{path}: not the weights of the architecture beside it: {first}") from None
