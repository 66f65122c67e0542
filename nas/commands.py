"""The small commands: each reads a folder or file and prints or redraws."""

import dataclasses
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from derive.strict_json import read_json
from nas.config import Config, DeriveConfig
from supernet.errors import SettingError, UserError

if TYPE_CHECKING:
    from derive import Architecture
    from nas.data import Corpus
    from nas.machine import Machine
    from nas.options import GenerateConfig
    from supernet.backbone import Network


def derive_run(folder: Path, choices: DeriveConfig) -> None:
    """Write the architectures of a finished search."""
    from nas.derive_stage import derive_stage, print_derived

    print_derived(derive_stage(folder, choices))


def plot_run(folder: Path) -> None:
    """Redraw every picture of a run."""
    from nas.plots import draw_all

    for path in draw_all(folder):
        print(path)


def report_run(folder: Path) -> None:
    """Rebuild `report.html`."""
    from nas.report import write_report

    print(write_report(folder))


def evaluate_checkpoint(path: Path, config: Config, split: str) -> None:
    """Print the loss of a `model.safetensors` on a part of the text it was trained on, or of another with its
    vocabulary."""
    from nas.train import evaluate

    trained = _open(path, config, "evaluates")
    seq_len = min(config.data.seq_len, trained.model.settings.max_len)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, seq_len=seq_len))
    result = evaluate(trained.model, trained.corpus, split, config, trained.machine)
    print(f"split {split}")
    print(f"loss {result.loss:.6f} nats a token")
    print(f"standard_error {result.standard_error:.6f}")
    print(f"tokens {result.tokens}")
    print(f"perplexity {math.exp(min(result.loss, 700.0)):.6f}")
    for name, value in (
        ("word_perplexity", trained.corpus.word_perplexity(result.loss, split)),
        ("bits_per_character", trained.corpus.bits_per_character(result.loss, split)),
    ):
        if value is not None:
            print(f"{name} {value:.6f}")


def generate_text(path: Path, config: Config, wanted: "GenerateConfig") -> None:
    """Print a prompt and what a `model.safetensors` goes on with; the text of its training tells what its tokens
    are."""
    import torch

    from nas.prompts import Prompt
    from nas.train import span_of

    wanted.check()
    # rows to evaluate on, of which a file may speak, are not made here: they need not fit
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, seq_len=1, eval_seq_len=None))
    trained = _open(path, config, "generates with")
    prompt = Prompt(wanted.prompt, trained.corpus, config.data)
    device = trained.machine.device
    generator = torch.Generator(device).manual_seed(config.run.seed if wanted.seed is None else wanted.seed)
    try:
        with trained.machine.autocast(), span_of(trained.model, config.data):
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


def _not_finite(trained: "_Trained", config: Config) -> UserError:
    """What is wrong with a network whose logits are not finite: its file, or the precision."""
    import torch

    finite = all(parameter.isfinite().all() for parameter in trained.model.parameters())
    if finite and trained.machine.dtype != torch.float32:
        return SettingError(
            "run.precision", f"{config.run.precision}: the logits of {trained.path} are not finite; use fp32"
        )
    wrong = "so large that the logits are not finite" if finite else "not finite"
    return UserError(f"{trained.path}: the weights are {wrong}; expected those of a training that went well")


class _Trained(NamedTuple):
    """A trained network on its device, the file it is from, and the text that has its vocabulary."""

    path: Path
    model: "Network"
    corpus: "Corpus"
    machine: "Machine"


def _open(path: Path, config: Config, does: str) -> _Trained:
    """The network of a `model.safetensors` or its folder, with the configuration's text; UserError for what does not
    fit."""
    from derive import Architecture, build
    from nas.architectures import check_span
    from nas.machine import choose_machine
    from nas.memory import check_evaluation_memory
    from nas.train import load_weights

    path = path / "model.safetensors" if path.is_dir() else path
    if not path.exists():
        raise UserError(f"{path}: no such file; expected a model.safetensors of a retraining")
    arch = Architecture.load(path.parent / "architecture.json")
    if arch.task != "causal_lm":
        raise UserError(f"{path}: this version {does} causal_lm, not {arch.task}")
    data = dataclasses.replace(config.data, order="auto")  # of training
    check_span({layer.block for layer in arch.layers}, arch.model, data, arch.name)
    corpus = _corpus_of(path, arch, config)
    machine = choose_machine(config.run)
    check_evaluation_memory(arch, machine.device)
    model = build(arch)
    load_weights(model, path)
    return _Trained(path, model.to(machine.device), corpus, machine)


def _corpus_of(path: Path, arch: "Architecture", config: Config) -> "Corpus":
    """The configuration's text; UserError where its vocabulary is not that of the training."""
    from nas.data import load_corpus

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


def print_latency(config: Config) -> None:
    """Print the latency table; write `latency.json` where run.dir is given."""
    from derive.strict_json import write_json
    from nas.data import load_corpus
    from nas.latency import measure_candidates
    from nas.machine import choose_machine
    from nas.memory import check_latency_memory

    config.check()
    folder = None if config.run.dir is None else Path(config.run.dir)
    if folder is not None:
        _prepare(folder)
    machine = choose_machine(config.run)
    settings = config.model.settings(load_corpus(config.data).vocab_size, config.data.seq_len)
    check_latency_memory(config, settings, machine.device)
    table, training = (measure_candidates(config, settings, machine, training=backward) for backward in (False, True))
    print(
        f"{table['device']}, {table['mode']}, {table['dtype']}, batch {table['batch']}, "
        f"{table['lengths']['seq_len']} tokens"
    )
    rows = {label: (row, training["candidates"][label]) for label, row in table["candidates"].items()}
    rows["(embedding, norm, head)"] = table["surroundings"], training["surroundings"]
    width = max(map(len, rows))
    print(f"{'':<{width}}  {'forward':>12}  {'spread':>9}  {'with backward':>13}  {'spread':>9}")
    for label, both in rows.items():
        print(
            f"{label:<{width}}  " + "  ".join(f"{row['median_ms']:10.4f} ms  {row['spread_ms']:9.4f}" for row in both)
        )
    if folder is not None:
        write_json(
            folder / "latency.json",
            {**table, "training": {key: training[key] for key in ("candidates", "surroundings")}},
        )


def _prepare(folder: Path) -> None:
    """Make the folder that a table goes into; SettingError where it cannot be written or holds a run, which has its
    own."""
    if (folder / "config.yaml").exists():
        raise SettingError("run.dir", f"{folder} holds a run with a table of its own; give another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError("run.dir", f"cannot write to {folder}: {error.strerror or error}") from None
