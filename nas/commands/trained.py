"""`evaluate` and `generate`: what a trained network is good for, from its file."""

import dataclasses
import sys
from pathlib import Path
from typing import NamedTuple

import torch

from derive import Architecture
from derive.strict_json import read_json
from nas.config.options import GenerateConfig
from nas.config.sections import Config
from nas.costs.memory import check_evaluation_memory
from nas.data.corpus import Corpus, load_corpus
from nas.data.prompts import Prompt
from nas.machine.device import choose_machine
from nas.stages.architectures import check_span
from nas.tasks.table import TASKS
from nas.training.evaluation import evaluate, span_of
from nas.training.setup import Setup
from nas.training.weights import load_trained
from supernet.errors import SettingError, UserError
from supernet.network import Network


class Trained(NamedTuple):
    """A trained network on its device, the file it is from, and what it is used with."""

    path: Path
    model: Network
    setup: Setup


def evaluate_checkpoint(path: Path, config: Config, split: str) -> None:
    """Print the loss of a `model.safetensors` on a part of the text it was trained on, or of another with its
    vocabulary."""
    trained = open_trained(path, config)
    task, max_len = trained.setup.task, trained.model.settings.max_len
    data = dataclasses.replace(config.data, seq_len=min(config.data.seq_len, max_len))
    result = evaluate(trained.model, trained.setup.but(data=data), split)
    print(f"split {split}")
    print(f"loss {result.loss:.6f} {task.unit}")
    print(f"standard_error {result.standard_error:.6f}")
    print(f"tokens {result.tokens}")
    for name, value in task.measures(trained.setup.corpus, result.loss, split).items():
        if value is not None:
            print(f"{name} {value:.6f}")


def generate_text(path: Path, config: Config, wanted: GenerateConfig) -> None:
    """Print a prompt and what a `model.safetensors` goes on with; the text of its training tells what its tokens
    are."""
    wanted.check()
    # rows to evaluate on, of which a file may speak, are not made here: they need not fit
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, seq_len=1, eval_seq_len=None))
    trained = open_trained(path, config)
    if not trained.setup.task.generates:
        raise UserError(f"{path}: a {trained.setup.task.name} cannot go on with a text")
    prompt = Prompt(wanted.prompt, trained.setup.corpus, config.data)
    device = trained.setup.machine.device
    generator = torch.Generator(device).manual_seed(config.run.seed if wanted.seed is None else wanted.seed)
    try:
        with trained.setup.machine.autocast(), span_of(trained.model, config.data):
            tokens = trained.model.generate(
                torch.from_numpy(prompt.tokens)[None].to(device),
                wanted.tokens,
                temperature=wanted.temperature,
                top_k=wanted.top_k,
                generator=generator,
            )
    except FloatingPointError:
        raise _not_finite(trained, config) from None
    print(_printable(prompt.with_more(tokens[0].cpu().numpy())))


def _printable(text: str) -> str:
    """The text with \\x.. or \\u.... for each character that the encoding of standard output lacks."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _not_finite(trained: Trained, config: Config) -> UserError:
    """What is wrong with a network whose logits are not finite: its file, or the precision."""
    finite = all(parameter.isfinite().all() for parameter in trained.model.parameters())
    if finite and trained.setup.machine.dtype != torch.float32:
        return SettingError(
            "run.precision", f"{config.run.precision}: the logits of {trained.path} are not finite; use fp32"
        )
    wrong = "so large that the logits are not finite" if finite else "not finite"
    return UserError(f"{trained.path}: the weights are {wrong}; expected those of a training that went well")


def open_trained(path: Path, config: Config) -> Trained:
    """The network of a `model.safetensors` or its folder, with the configuration's text; UserError for what does not
    fit."""
    path = path / "model.safetensors" if path.is_dir() else path
    if not path.exists():
        raise UserError(f"{path}: no such file; expected a model.safetensors of a retraining")
    arch = Architecture.load(path.parent / "architecture.json")
    if arch.task not in TASKS:
        raise UserError(f"{path}: this version knows {' and '.join(TASKS)}, not {arch.task}")
    data = dataclasses.replace(config.data, order="auto")  # of training
    check_span({layer.block for layer in arch.layers}, arch.model, data, arch.name)
    corpus = _corpus_of(path, arch, config)
    machine = choose_machine(config.run)
    check_evaluation_memory(arch, machine.device)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, task=arch.task))
    return Trained(path, load_trained(path.parent).to(machine.device), Setup(config, corpus, machine))


def _corpus_of(path: Path, arch: Architecture, config: Config) -> Corpus:
    """The configuration's text; UserError where its vocabulary is not that of the training."""
    corpus = load_corpus(config.data)
    if corpus.vocab_size != arch.model.vocab_size:
        raise UserError(
            f"{path}: the model's vocabulary has {arch.model.vocab_size} tokens, that of the text {corpus.vocab_size}; "
            "give data.name, data.path and data.tokens of its training"
        )
    result = path.with_name("result.json")
    trained_on = read_json(result).get("vocabulary_id") if result.exists() else None
    if trained_on not in (None, corpus.vocabulary_id):
        raise UserError(
            f"{path}: the text's vocabulary has the size of the model's, but other tokens; give the data of its "
            "training"
        )
    return corpus
