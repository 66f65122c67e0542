"""The configuration: every key changes something, defaults are valid, and wrong values are named by their key."""

import contextlib
import dataclasses
import hashlib
import io
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import CPU, ROOT, call, search_in, setup_of, tiny

from derive import Architecture, build, derive_architectures
from derive.strict_json import read_json
from derive.yaml_file import read_yaml
from nas.config.options import config_from_values
from nas.config.ranges import RANGES, check_ranges
from nas.config.sections import DEFAULT_BLOCKS, Config
from nas.costs.latency import measure_candidates
from nas.data.batches import Place, crop_batch, training_batch
from nas.data.corpus import load_corpus
from nas.machine.device import choose_machine
from nas.machine.process import count_workers
from nas.machine.stop import StopFlag
from nas.results.run_folder import choose_folder, open_run_folder
from nas.searching.search_state import build_state
from nas.searching.search_steps import weight_step
from nas.stages.halving import halving_stage
from nas.stages.preflight import check_run
from nas.stages.retrain_stage import retrain_seeds
from nas.stages.search_stage import seed_folders
from nas.stages.sweep import sweep_points
from nas.training.evaluation import evaluate
from nas.training.train import build_training, train_architecture, train_step
from supernet.blocks import BLOCKS
from supernet.errors import SettingError, UserError


def digest(folder: Path) -> str:
    """All that a search or training left, without times."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "config.yaml":
            lines = path.read_bytes().splitlines() if path.suffix == ".jsonl" else [path.read_bytes()]
            found.update(b"".join(line.split(b', "tokens_per_second"')[0] for line in lines) + path.name.encode())
    return found.hexdigest()


def searched(config: Config, folder: Path) -> Any:
    search_in(folder, config)
    return digest(folder)


def trained(config: Config, folder: Path) -> Any:
    settings = config.model.settings(256, config.data.seq_len)
    arch = Architecture.from_pattern("sf", {**settings.to_mapping(), "task": settings.task})
    with contextlib.redirect_stderr(io.StringIO()):
        train_architecture(arch, setup_of(config), folder / "retrain", 0, stop=StopFlag())
    return digest(folder)


def checked(config: Config, folder: Path) -> Any:
    try:
        config.check()
    except SettingError as error:
        return error.path


def machine(config: Config, folder: Path) -> Any:
    try:
        found = choose_machine(config.run)
        return str(found), torch.are_deterministic_algorithms_enabled()
    except SettingError as error:
        return error.path
    finally:
        torch.use_deterministic_algorithms(False)


def initial_weights(config: Config, folder: Path) -> Any:
    state = build_state(setup_of(config), config.run.seed)
    return [value.tolist() for value in state.model.state_dict().values()]


def compiled(config: Config, folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, on importing its compiler
        state = build_state(setup_of(config), 0)
    return [candidate._compiled_call_impl is not None for layer in state.model.layers for candidate in layer.candidates]


def opened(config: Config, folder: Path) -> Any:
    data = {"sha256": "5", "vocab_size": 256, "parts": {}}
    open_run_folder(tiny(), folder / "run", data).close()
    try:
        open_run_folder(config, folder / "run", data).close()
    except UserError as error:
        return str(error)


def boards(config: Config, folder: Path) -> Any:
    try:
        search_in(folder, config)
    except SettingError as error:  # the extra is not installed
        return error.path
    return (folder / "tensorboard").exists()


def text(config: Config, folder: Path) -> Any:
    """`data.path` is a file beside the folder, `data.name` text unless it is what changes."""
    changed = {"name": "text"} if config.data.name == "sotu" else {}
    if config.data.name != "named":
        for name, letters in (("one", b"a b c d "), ("two", b"a b c e ")):
            (folder.parent / name).write_bytes(letters * 400)
        changed["path"] = str(folder.parent / (config.data.path or "one"))
    corpus = load_corpus(dataclasses.replace(config.data, **changed))
    return corpus.to_json(), corpus.vocabulary_id


def named(config: Config, folder: Path) -> Any:
    try:
        return load_corpus(config.data).name
    except SettingError as error:
        return str(error)


def batch(config: Config, folder: Path) -> Any:
    corpus, data = load_corpus(config.data), config.data
    return crop_batch(
        corpus, "weights", seq_len=data.seq_len, batch_size=data.batch_size, seed=0, step=0, stream="x"
    ).shape


def held_for_backward(config: Config, folder: Path) -> Any:
    """Elements that a training step's graph keeps."""
    state = build_training(
        Architecture.from_pattern("sf", {**config.model.settings(256, 16).to_mapping(), "task": "causal_lm"}),
        setup_of(config),
        0,
    )
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tensor.numel()) or tensor, lambda tensor: tensor
    ):
        train_step(state, setup_of(config), 0)
    return sum(kept)


def rows_at_a_time(config: Config, folder: Path) -> Any:
    state = build_state(setup_of(config), 0)
    seen: list[int] = []
    state.model.register_forward_pre_hook(lambda model, arguments: seen.append(len(arguments[0])))
    weight_step(state, setup_of(config), 0)
    return seen


def timed(config: Config, folder: Path) -> Any:
    table = measure_candidates(config, config.model.settings(256, config.data.seq_len), CPU)
    return table["batch"], table["lengths"], table["mode"]


def tried_out(config: Config, folder: Path) -> Any:
    done = call("search", f"--run.dry_run={config.run.dry_run}", "--print_config")
    return done.stdout


def ordered(config: Config, folder: Path) -> Any:
    corpus = load_corpus(config.data)
    place = Place(0, "x", step=3, segment=3)
    return training_batch(corpus, "weights", config.data, place, memory_len=0, share=(0, 1)).tokens.tolist()


def evaluated(config: Config, folder: Path) -> Any:
    """The loss of a fresh network with memory and relative positions."""
    settings = config.model.settings(256, config.data.seq_len)
    torch.manual_seed(0)
    network = build(Architecture.from_pattern("sf", {**settings.to_mapping(), "task": settings.task}))
    with torch.no_grad():
        network.layers[0].block.output.weight.mul_(100)
    return evaluate(network, setup_of(config), "held_out", limit=512).loss


def derived(config: Config, run: Path) -> Any:
    found = derive_architectures(run, **dataclasses.asdict(config.derive))
    return [(arch.pattern, arch.evidence["probabilities"]) for arch in found.values()]


def swept(config: Config, run: Path) -> Any:
    return [point.arch.pattern for point in sweep_points(run, config)]


def halved(config: Config, folder: Path) -> Any:
    """The rungs of a halving of the debug run's layouts; `folder` is a copy of that run."""
    with contextlib.redirect_stderr(io.StringIO()):
        halving_stage(config, folder, [], StopFlag())
    return read_json(folder / "halving.json")


def trained_names(config: Config, folder: Path) -> Any:
    return [*config.retrain.architectures, *(arch.name for arch in check_run(config, load_corpus(config.data)))]


REMEMBERING = {"model__memory_len": 16, "model__position": "relative"}
# key -> (another value, what must come out differently, other settings under which the key matters)
KEYS: dict[str, tuple[Any, Callable[[Config, Path], Any], dict[str, Any]]] = {
    "run.dir": ("elsewhere", lambda config, folder: choose_folder(config), {}),
    "run.seed": (5, initial_weights, {}),
    "run.device": ("cuda", machine, {}),
    "run.precision": ("bf16", machine, {}),
    "run.compile": (True, compiled, {}),
    "run.resume": (True, opened, {}),
    "run.deterministic": (True, machine, {}),
    "run.workers": (3, lambda config, folder: count_workers(config.run, 8), {}),
    "run.recompute": ("all", held_for_backward, {}),
    "run.dry_run": (True, tried_out, {}),
    "run.shard": (True, machine, {}),
    "run.tensorboard": (True, boards, {}),
    "run.log_every": (4, searched, {}),
    "run.checkpoint_every": (7, searched, {}),
    "data.name": ("text", named, {}),
    "data.path": ("two", text, {}),
    "data.tokens": ("chars", text, {}),
    "data.seq_len": (12, batch, {}),
    "data.batch_size": (4, batch, {}),
    "data.micro_batch_size": (2, rows_at_a_time, {}),
    "model.task": ("classification", checked, {}),
    "model.memory_len": (4, trained, {"model__position": "none"}),
    "model.share_biases": (False, trained, {"model__position": "relative"}),
    "model.cutoffs": ([100, 200], trained, {}),
    "data.order": ("contiguous", ordered, {}),
    "data.eval_seq_len": (5, evaluated, {}),
    "data.eval_memory_len": (9, evaluated, REMEMBERING),
    "data.eval_clamp_len": (3, evaluated, REMEMBERING),
    **{
        f"model.{key}": (value, searched, {})
        for key, value in {
            "layers": 3,
            "d_model": 10,
            "heads": 4,
            "d_inner": 11,
            "max_len": 20,
            "dropout": 0.1,
            "norm": "post",
            "position": "none",
            "tie_embeddings": False,
        }.items()
    },
    **{
        f"search.{key}": (value, searched, {})
        for key, value in {
            "blocks": ["self_attention", "feed_forward"],
            "steps": 21,
            "warmup_steps": 9,
            "relaxation": "gumbel",
            "temperature_start": 2.0,
            "temperature_end": 0.5,
            "weight_lr": 1e-3,
            "weight_decay": 0.3,
            "arch_lr": 0.2,
            "arch_every": 2,
            "clip": 0.01,
            "cost": "parameters",
            "cost_weight": 0.5,
            "budget": 0.4,
            "evaluate_every": 9,
            "evaluate_tokens": 128,
        }.items()
    },
    "search.arch_samples": (3, searched, {"search__relaxation": "sampled"}),
    "search.share_values": (
        True,
        searched,
        {"search__blocks": ["self_attention", "random_synthesizer", "feed_forward", "identity"]},
    ),
    "search.mixture": (0.9, searched, {"search__relaxation": "sampled"}),
    "search.active": (2, searched, {"search__relaxation": "gumbel"}),
    "search.seeds": (2, lambda config, folder: seed_folders(folder, config), {}),
    "derive.rules": ([{"block": "identity", "exactly": 4}], derived, {}),
    "derive.cut": (0.5, derived, {"derive__ratio": 2}),
    "derive.ratio": (1.0, derived, {}),
    "derive.budget": (0.01, derived, {}),
    "derive.selection": ("average", derived, {}),
    **{
        f"retrain.{key}": (value, trained, {})
        for key, value in {
            "steps": 17,
            "lr": 1e-3,
            "weight_decay": 0.3,
            "clip": 0.01,
            "evaluate_every": 9,
            "evaluate_tokens": 128,
            "final_tokens": 256,
        }.items()
    },
    "retrain.seeds": (2, lambda config, folder: retrain_seeds(config), {}),
    "retrain.against": (["ff"], trained_names, {}),
    "retrain.architectures": (["budget"], trained_names, {}),
    "retrain.drawn": (2, halved, {}),
    "retrain.random": (3, halved, {"retrain__drawn": 1}),
    "retrain.rungs": ([0.5], halved, {"retrain__drawn": 1}),
    "retrain.rung_tokens": (512, halved, {"retrain__drawn": 1}),
    "latency.batch_size": (3, timed, {}),
    "latency.seq_len": (7, timed, {}),
    "latency.of": ("training", timed, {}),
    "sweep.ratios": ([1.0], swept, {}),
    "sweep.cuts": ([0.25, 1.0], swept, {"sweep__ratios": [2.0]}),
}
BASELINES: dict[tuple, Any] = {}
ALL = [f"{field.name}.{key.name}" for field in dataclasses.fields(Config) for key in dataclasses.fields(field.type)]


def test_every_key_is_in_the_table() -> None:
    assert sorted(KEYS) == sorted(ALL)


@pytest.mark.parametrize("key", ALL)
def test_changing_a_key_changes_something(
    key: str, tmp_path: Path, debug_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, probe, others = KEYS[key]
    section, name = key.split(".")
    monkeypatch.chdir(tmp_path)
    config = tiny(**others)
    assert getattr(getattr(config, section), name) != value
    changed = dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **{name: value})})
    folders = [tmp_path / "before", tmp_path / "after"]
    if probe in (derived, swept):
        folders = [debug_run, debug_run]
    elif probe is halved:
        folders = [copy_searched(debug_run, folder) for folder in folders]
    before = baseline(probe, config, tmp_path) if probe in (searched, trained) else probe(config, folders[0])
    assert probe(changed, folders[1]) != before


def copy_searched(run: Path, folder: Path) -> Path:
    """A run folder as a search leaves it."""
    folder.mkdir()
    for name in ("config.yaml", "data.json", "probabilities.json", "latency.json"):
        shutil.copyfile(run / name, folder / name)
    return folder


def baseline(probe: Callable[[Config, Path], Any], config: Config, folder: Path) -> Any:
    """What the unchanged configuration gives, found out once, and again so that nothing but the key makes the
    difference."""
    known = (probe, config.to_yaml())
    if known not in BASELINES:
        BASELINES[known] = probe(config, folder / "before")
        assert probe(config, folder / "again") == BASELINES[known]
    return BASELINES[known]


def test_the_defaults_and_the_presets_are_valid() -> None:
    Config().check()
    for path in sorted((ROOT / "configs").rglob("*.yaml")):
        config = config_from_values(read_yaml(path) or {}, Config(), source=str(path))
        if path.stem != "own_block":  # its block is registered by examples/own_block.py
            config.check()
        check_ranges(config)


def test_built_in_blocks_are_candidates_by_default() -> None:
    assert Config().search.blocks == list(DEFAULT_BLOCKS) and set(DEFAULT_BLOCKS) <= set(BLOCKS)


@pytest.mark.parametrize("key", RANGES)
def test_a_number_out_of_its_range_is_named(key: str) -> None:
    least, closed, most = RANGES[key]
    section, name = key.split(".")
    listed = isinstance(getattr(getattr(Config(), section), name), list)
    for value in (least - 1, float("nan"), *([] if closed else [least]), *([] if most == float("inf") else [most * 2])):
        wrong = dataclasses.replace(getattr(Config(), section), **{name: [value] if listed else value})
        with pytest.raises(SettingError) as error:
            dataclasses.replace(Config(), **{section: wrong}).check()
        assert error.value.path == key and str(value) in str(error.value)


def test_every_number_has_a_range() -> None:
    numbers = {
        f"{field.name}.{key.name}"
        for field in dataclasses.fields(Config)
        for key in dataclasses.fields(field.type)
        if "int" in str(key.type) or "float" in str(key.type)
    }
    # these have checks of their own
    assert numbers - set(RANGES) <= {
        "model.dropout",
        "model.cutoffs",
        "retrain.rungs",
    }


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("sweep", "ratios", []),
        ("sweep", "cuts", []),
        ("retrain", "rungs", [0.5, 0.5]),
        ("retrain", "rungs", [1.0]),
        ("model", "dropout", 1.0),
    ],
)
def test_other_values_that_do_not_fit_are_named(section: str, name: str, value: Any) -> None:
    wrong = dataclasses.replace(getattr(Config(), section), **{name: value})
    with pytest.raises(SettingError) as error:
        dataclasses.replace(Config(), **{section: wrong}).check()
    assert error.value.path == f"{section}.{name}"


def test_seeds_and_lists_are_not_shared_between_configurations() -> None:
    Config().search.blocks.append("x")
    assert "x" not in Config().search.blocks
