"""Plain training of one architecture."""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from derive import Architecture, build
from derive.strict_json import dumps_line, write_atomic
from nas.data.batches import Place
from nas.machine.device import compile_each
from nas.machine.distributed import stop_asked
from nas.machine.process import seed_dropout, seed_from
from nas.machine.sharding import shard
from nas.machine.stop import StopFlag
from nas.training.checkpoint import MetricsLog
from nas.training.evaluation import Evaluation, evaluate
from nas.training.losses import part_losses
from nas.training.optimizers import build_adamw, learning_rate
from nas.training.setup import Setup
from nas.training.train_state import NotFinite, StepClock, TrainState, go_back, resume, save_state
from nas.training.weights import save_weights
from supernet.errors import UserError


def model_seed(seed: int) -> int:
    """Seed of the initial weights of a retraining."""
    return seed_from(seed, "retrain", "initial weights")


def train_architecture(
    arch: Architecture, setup: Setup, folder: Path, seed: int, *, stop: StopFlag, slot: int = 0
) -> None:
    """Train from scratch into `folder`: `architecture.json`, `metrics.jsonl`, `model.safetensors`, `result.json`.

    Goes on from the folder's checkpoint where there is one. The data of step k depends on (seed, k) alone, so every
    architecture sees the same text.
    """
    retrain = setup.config.retrain
    state = _train(arch, setup, folder, seed, until=retrain.steps, stop=stop, slot=slot)
    save_weights(state.model, folder / "model.safetensors")
    final = evaluate(state.model, setup, "held_out", limit=retrain.final_tokens)
    write_result(folder, final, state.step, setup.corpus.vocabulary_id)
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        (folder / name).unlink(missing_ok=True)  # the weights are saved, and nothing is left to go on with


def is_trained(arch: Architecture, folder: Path) -> bool:
    """Whether the folder holds the finished training of this layout; UserError where it holds that of another one."""
    if not (folder / "result.json").exists():
        return False
    trained = Architecture.load(folder / "architecture.json")
    if (trained.layers, trained.model) != (arch.layers, arch.model):
        raise UserError(
            f"{folder}: holds the training of another layout of the name {arch.name!r}, {trained.pattern}; give "
            "another run.dir, or another name in the file"
        )
    return True


def train_to_rung(
    arch: Architecture, setup: Setup, folder: Path, seed: int, *, step: int, stop: StopFlag, slot: int = 0
) -> None:
    """Train up to `step`, leave a checkpoint to go on from and `rung-STEP.json` with the loss on the `alphas` part."""
    state = _train(arch, setup, folder, seed, until=step, stop=stop, slot=slot)
    save_state(state, folder, setup.machine)
    reached = evaluate(state.model, setup, "alphas", limit=setup.config.retrain.rung_tokens)
    line = {"step": step, "loss": reached.loss, "standard_error": reached.standard_error}
    write_atomic(folder / f"rung-{step}.json", dumps_line(line).encode("utf-8"))


def _train(
    arch: Architecture, setup: Setup, folder: Path, seed: int, *, until: int, stop: StopFlag, slot: int
) -> TrainState:
    """Train up to step `until`, from the folder's checkpoint where there is one; writes `architecture.json` and the
    metrics."""
    run, retrain, machine = setup.config.run, setup.config.retrain, setup.machine
    folder.mkdir(parents=True, exist_ok=True)
    arch.save(folder / "architecture.json")
    state = build_training(arch, setup, seed)
    resume(state, folder, machine)
    progress = tqdm(total=until, initial=state.step, desc=f"{arch.name} seed {seed}", position=slot, mininterval=1.0)
    clock = StepClock(state.step)
    with MetricsLog(folder / "metrics.jsonl", state.step) as metrics, progress, stop.deferred():
        while state.step < until:
            try:
                with clock:
                    loss = train_step(state, setup, seed)
            except NotFinite as failure:
                state = go_back(state, partial(build_training, arch, setup, seed), folder, machine, failure)
                metrics.cut(state.step)
                clock = StepClock(state.step)
                continue
            progress.update(state.step - progress.n)
            last = state.step == retrain.steps
            if state.step == 1 or last or state.step % run.log_every == 0:
                speed = clock.steps_per_second(state.step, machine) * setup.tokens_a_step
                held_out = None
                if last or passes(state.step, retrain.evaluate_every, run.log_every):
                    held_out = evaluate(state.model, setup, "held_out", limit=retrain.evaluate_tokens).loss
                metrics.write(
                    step=state.step,
                    phase="retrain",
                    loss=float(loss),
                    held_out_loss=held_out,
                    tokens_per_second=round(speed, 1),
                )
                progress.set_postfix(loss=float(loss), refresh=False)
            if state.step % run.checkpoint_every == 0 and not last:
                save_state(state, folder, machine)
            if stop_asked(machine, stop):
                save_state(state, folder, machine)
                stop.check()
    return state


def build_training(arch: Architecture, setup: Setup, seed: int) -> TrainState:
    """A new network and its optimizer."""
    config, machine = setup.config, setup.machine
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


def train_step(state: TrainState, setup: Setup, seed: int) -> Tensor:
    """One AdamW step on the `weights` part; returns the loss. A non-finite step changes nothing and is counted."""
    config, step = setup.config, state.step
    retrain = config.retrain
    seed_dropout(setup.machine, seed, "retrain", "dropout", step)
    place = Place(seed, "retrain", step, segment=step)
    batch = setup.task.training_batch(
        setup.corpus, "weights", config.data, place, memory_len=state.model.memory_len, share=setup.share
    )
    state.model.recompute = config.run.recompute == "all"
    losses = part_losses(state.model, batch, setup, memory=state.memory)
    rate = retrain.lr * learning_rate(step, retrain.steps)
    return state.descend(losses, rate, retrain.clip, setup.machine, last=step + 1 == retrain.steps)


def write_result(folder: Path, final: Evaluation, steps: int, vocabulary_id: str) -> None:
    """`result.json`, the mark of a finished training: loss, its standard error, tokens, steps and vocabulary."""
    line = {
        "steps": steps,
        "held_out_loss": final.loss,
        "standard_error": final.standard_error,
        "tokens": final.tokens,
        "vocabulary_id": vocabulary_id,
    }
    write_atomic(folder / "result.json", dumps_line(line).encode("utf-8"))
