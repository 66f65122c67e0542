"""Options: YAML first, the command line on top, and each mistake in one line that names the key as it was written."""

import dataclasses
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_runs import tiny_values

from derive.yaml_file import dump_yaml
from nas.commands import command_line
from nas.config.command_keys import SECTIONS
from nas.config.options import config_from_values
from nas.config.sections import Config
from supernet.errors import UserError


def parsed(*arguments: str, command: str = "run") -> Config:
    config, _ = command_line.parse(command, list(arguments))
    config.check()
    return config


def mistake(*arguments: str, command: str = "run") -> str:
    with pytest.raises(UserError) as error:
        parsed(*arguments, command=command)
    message = str(error.value)
    assert "\n" not in message and "class '" not in message and "Union" not in message and len(message) < 500
    return message


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "c.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return path


ON_THE_COMMAND_LINE = [
    (["--search.stepz", "3"], "search.stepz: unknown key (did you mean 'search.steps'?)"),
    (["--serch.steps=3"], "serch.steps: unknown key (did you mean 'search.steps'?)"),
    (["--search.step", "3000"], "search.step: unknown key (did you mean 'search.steps'?)"),  # no abbreviations
    (["--nonsense", "3"], "nonsense: unknown key; --help"),
    (["extra"], "extra: unexpected argument"),
    (["--"], "--: unexpected argument"),
    (["--search.steps"], "search.steps: expected an integer, got nothing"),
    (["--search.steps="], "search.steps: expected an integer, got nothing"),
    (["--search.steps", "abc"], "search.steps: expected an integer, got abc"),
    (["--search.steps", "1.5"], "search.steps: expected an integer, got 1.5"),
    (["--search.steps", "0"], "search.steps: expected a value at least 1"),
    (["--search.steps", "9" * 30], "search.steps: expected a value at least 1 and at most 1099511627776"),
    (["--search.warmup_steps", "999999"], "search.warmup_steps: 999999 leaves no step"),
    (["--search.weight_lr", "inf"], "search.weight_lr: expected a"),
    (["--search.weight_lr", ".inf"], "search.weight_lr: expected a"),
    (["--search.weight_lr", "-1"], "search.weight_lr: expected a value above 0"),
    (["--search.budget", "nan"], "search.budget: expected a number or null, got nan"),
    (["--search.budget", ".nan"], "search.budget: expected a value above 0 and at most 1"),
    (["--search.budget", "2"], "search.budget: expected a value above 0 and at most 1, got 2"),
    (["--search.budget", "0"], "search.budget: expected a value above 0"),
    (["--search.temperature_end", "0"], "search.temperature_end: expected a value at least 0.001"),
    (
        ["--search.relaxation", "hard"],
        "search.relaxation: expected one of softmax, gumbel, gumbel_hard, sampled, got hard",
    ),
    (["--search.relaxation", "null"], "search.relaxation: expected one of"),
    (["--search.blocks", "self_attention"], "search.blocks: expected a list such as"),
    (["--search.blocks", "[self_attention,"], "search.blocks: expected a list such as"),
    (["--search.blocks", "[self_attention]"], "search.blocks: a search needs at least two candidates"),
    (["--search.blocks", "[]"], "search.blocks: a search needs at least two candidates"),
    (
        ["--search.blocks", "[identity, feed_forwrd]"],
        "search.blocks[1].block: unknown block 'feed_forwrd' (did you mean 'feed_forward'?)",
    ),
    (
        ["--search.blocks", "[identity, {block: feed_forward, d_innr: 3}]"],
        "search.blocks[1].d_innr: unknown option (did you mean 'd_inner'?)",
    ),
    (
        ["--search.blocks", "[identity, {block: self_attention, heads: 77}]"],
        "search.blocks[1].heads: 77 does not divide",
    ),
    (["--search.blocks", "[identity, identity]"], "search.blocks[1]: identity is already a candidate"),
    (["--search", "3"], "search: expected keys with values"),
    (["--run.compile", "maybe"], "run.compile: expected true or false, got maybe"),
    (["--run.precision", "fp8"], "run.precision: expected one of auto, fp32, bf16, fp16, got fp8"),
    (["--run.dir", ""], "run.dir: expected text or null, got nothing"),
    (["--run.dir", "\udcff"], "not UTF-8"),
    (["--model.d_model", "64", "--model.heads", "3"], "model.heads: 3 does not divide d_model 64"),
    (["--data.seq_len", "9", "--model.max_len", "8"], "data.seq_len: 9 exceeds model.max_len 8"),
    (["--model.task", "translation"], "model.task: translation cannot be trained"),
    (["--model.task", "foo"], "model.task: expected one of causal_lm, masked_lm, classification, translation, got foo"),
    (["--model.memory_len", "8"], "model.memory_len: "),
    (["--model.dropout", "1"], "model.dropout: expected a number from 0"),
    (["--derive.rules", "foo"], "derive.rules: expected a list such as"),
    (["--derive.rules", "[foo]"], "derive.rules: expected a list such as"),
    (["--derive.cut", "1.5"], "derive.cut: expected a value above 0 and at most 1"),
    (["--retrain.against", "sf"], "retrain.against: expected a list such as [interleaved, par], got sf"),
    (["--retrain.against", "[1]"], "retrain.against: expected a list such as"),
    (["--config"], "config: expected a file"),
    (["--config", ""], "config: expected a file"),
    (["--config", "none.yaml"], "none.yaml: No such file"),
    (["--print_config=x"], "print_config"),
]


@pytest.mark.parametrize(("arguments", "wanted"), ON_THE_COMMAND_LINE, ids=lambda value: str(value)[:40])
def test_a_mistake_on_the_command_line(arguments: list[str], wanted: str) -> None:
    message = mistake(*arguments)
    assert message.startswith(wanted) or (wanted in ("not UTF-8", "print_config") and wanted in message)


IN_YAML = [
    ("search:\n  stepz: 3", "search.stepz: unknown key (did you mean 'steps'?)"),
    ("serch:\n  steps: 3", "serch: unknown section (did you mean 'search'?)"),
    ("search.steps: 5", "search.steps: unknown section (did you mean 'search'?)"),
    ("search: 3", "search: expected keys with values, got 3"),
    ("search:", "search: expected keys with values, got None"),
    ("- a", "expected sections such as run and search"),
    ("3", "expected sections such as run and search"),
    ("search:\n  steps: null", "search.steps: expected an integer, got null"),
    ("search:\n  steps: [1]", "search.steps: expected an integer, got [1]"),
    ("search:\n  steps: true", "search.steps: expected an integer, got True"),
    ("search:\n  steps: .nan", "search.steps: expected an integer, got nan"),
    ("search:\n  steps: {deep: 1}", "search.steps: expected an integer, got {'deep': 1}"),
    ("search:\n  budget: yes", "search.budget: expected a number or null, got True"),
    ("search:\n  blocks: [null, identity]", "search.blocks: expected a list such as"),
    ("search:\n  1: 2", "search.1: unknown key"),
    ("1: 2", "1: unknown section"),
    ("run:\n  dir: [a]", "run.dir: expected text or null, got ['a']"),
    ("run:\n  seed: 1\n  seed: 2", "key 'seed' stands twice"),
    ("derive:\n  rules: [a]", "derive.rules: expected a list such as"),
    ("data:\n  name: null", "data.name: expected text, got null"),
    ("data:\n  split: test", "data.split: unknown key"),
    ("model:\n  max_len: long", "model.max_len: expected an integer or null, got long"),
    ("config: x", "config: unknown section"),
    (b"\xff", "not UTF-8 at byte 0"),
    ("[" * 3000, "nested"),
    ('run:\n  dir: "\\ud800"', "run.dir: not UTF-8"),
    ("run:\n  seed: 0x" + "f" * 9000, "run.seed: "),
]


@pytest.mark.parametrize(("text", "wanted"), IN_YAML, ids=lambda value: str(value)[:40])
def test_a_mistake_in_yaml_names_the_file_too(tmp_path: Path, text: str | bytes, wanted: str) -> None:
    message = mistake("--config", str(written(tmp_path, text)))
    assert wanted in message and ("c.yaml: " in message or wanted.endswith("seed: "))


def test_values_out_of_range_in_yaml_name_the_key(tmp_path: Path) -> None:
    assert mistake("--config", str(written(tmp_path, "search:\n  weight_lr: .nan"))).startswith(
        "search.weight_lr: expected a value"
    )
    assert mistake("--config", str(written(tmp_path, "run:\n  seed: -1"))).startswith(
        "run.seed: expected a value at least 0"
    )


def test_keys_of_other_commands_are_told_apart_from_unknown_ones() -> None:
    assert mistake("par", "--search.steps", "3", command="show").startswith(
        "search.steps: this command does not take it"
    )
    assert mistake("x", "--data.split", "3", command="evaluate") == "data.split: expected one of held_out, test, got 3"
    assert mistake("--data.split", "test").startswith("data.split: unknown key")
    assert (
        mistake("par", "--format", "xml", command="show")
        == "format: expected one of text, json, pattern, tuple, got xml"
    )
    for key, value, words in (
        ("tokens", "1.5", "an integer, got 1.5"),
        ("temperature", "hot", "a number, got hot"),
        ("top_k", "x", "an integer or null, got x"),
    ):
        assert mistake("x", f"--{key}", value, command="generate") == f"{key}: expected {words}"
    assert mistake("x", "--prompt", "y", command="evaluate").startswith("prompt: unknown key")
    assert mistake(command="show").startswith("ARCH: is missing") and mistake(command="derive").startswith(
        "RUN: is missing"
    )


@pytest.mark.parametrize("command", ["evaluate", "generate"])
def test_keys_that_a_command_does_not_read_are_refused_and_in_a_file_read_over(tmp_path: Path, command: str) -> None:
    read = {
        "run": {"device", "precision", "deterministic"},
        "data": {"name", "path", "tokens", "eval_memory_len", "eval_clamp_len"},
    }
    if command == "evaluate":
        read["data"] |= {"seq_len", "eval_seq_len"}
    else:
        read["run"].add("seed")
    for section, known in read.items():
        for field in dataclasses.fields(SECTIONS[section]):
            key, value = (
                f"{section}.{field.name}",
                str(getattr(getattr(Config(), section), field.name)).lower().replace("none", "null"),
            )
            if field.name in known:
                command_line.parse(command, ["x", f"--{key}={value}"])
            else:
                for given in ([f"--{key}={value}"], [f"--{section}", f"{{{field.name}: {value}}}"]):
                    assert mistake("x", *given, command=command).startswith(f"{key}: this command does not take it")
    path = written(
        tmp_path, "run:\n  seed: 5\n  log_every: 7\ndata:\n  name: text\n  micro_batch_size: 2\n  seq_len: 9"
    )
    config = parsed("x", "--config", str(path), "--data.tokens", "chars", command=command)
    assert (config.run.seed, config.run.log_every, config.data.micro_batch_size, config.data.seq_len) == (5, 7, 2, 9)
    assert (config.data.name, config.data.tokens) == ("text", "chars")


def test_prompts_that_cannot_be_read_are_named_as_prompts() -> None:
    for words in (["--prompt", "a\udcff"], ["--prompt=a\udcff"], ["--prompt", "--\udcff"]):
        assert mistake("x", *words, command="generate").startswith("prompt: expected text in UTF-8, got ")
    assert (
        mistake("\udcff", "--prompt", "x", command="generate")
        == "\\udcff: not UTF-8; rename the file or give another value"
    )
    for words in (["--prompt", "-x"], ["--prompt"], ["--prompt", "--tokens", "3"]):
        message = mistake("x", *words, command="generate")
        assert message == "prompt: expected text, got nothing; text that begins with - is given as --prompt=-x"
    assert command_line.parse("generate", ["x", "--prompt=-x"])[1].prompt == "-x"


def test_exponents_in_yaml_and_on_the_command_line_are_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, "search:\n  weight_lr: 3e-4\n  arch_lr: 1E-2\nretrain:\n  lr: 5e-05")
    config = parsed("--config", str(path), "--search.cost_weight", "2e-1")
    assert (config.search.weight_lr, config.search.arch_lr, config.retrain.lr) == (3e-4, 1e-2, 5e-5)
    assert config.search.cost_weight == 0.2


def test_options_come_on_top_of_the_file_wherever_they_stand(tmp_path: Path) -> None:
    path = str(written(tmp_path, "search:\n  steps: 2000\n  seeds: 3\ndata:\n  seq_len: 64"))
    for arguments in (["--config", path, "--search.steps", "3000"], ["--search.steps=3000", f"--config={path}"]):
        config = parsed(*arguments)
        assert (config.search.steps, config.search.seeds, config.data.seq_len) == (3000, 3, 64)
        assert config.search.warmup_steps == Config().search.warmup_steps


def test_a_later_file_comes_on_top_of_an_earlier_one(tmp_path: Path) -> None:
    first, second = tmp_path / "1.yaml", tmp_path / "2.yaml"
    first.write_text("search:\n  steps: 2000\n  seeds: 3")
    second.write_text("search:\n  steps: 4000")
    config = parsed("--config", str(first), "--config", str(second))
    assert (config.search.steps, config.search.seeds) == (4000, 3)


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    assert parsed("--config", str(written(tmp_path, "# nothing\n"))) == Config()


def test_null_is_taken_where_a_key_has_it(tmp_path: Path) -> None:
    path = written(tmp_path, "search:\n  budget: null\nderive:\n  cut: 0.5")
    config = parsed("--config", str(path), "--derive.cut", "null", "--model.max_len", "null")
    assert config.search.budget is None and config.derive.cut is None and config.model.max_len is None


def test_text_that_looks_like_something_else_stays_text() -> None:
    for text in ("123", "true", "3e-4", "a: b", "[x", "@x", "2020-01-01"):
        assert parsed("--run.dir", text).run.dir == text


ODD = {
    "run__dir": "3e-4",
    "search__weight_lr": 3e-5,
    "search__budget": None,
    "retrain__against": ["(sf)x2", "no", "ffff"],
    "search__blocks": [
        "self_attention[heads=1]",
        {"block": "mixture_synthesizer", "parts": ["dense", "random"]},
        "feed_forward",
    ],
    "derive__rules": [{"block": "feed_forward", "at_most": 3}],
    "data__path": None,
    "latency__batch_size": 3,
    "latency__of": "training",
}


def test_print_config_is_valid_input_and_equal(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    given = written(tmp_path, dump_yaml(tiny_values(**ODD)))
    assert command_line.parse("run", ["--config", str(given), "--print_config", "--run.seed", "7"]) is None
    printed = capsys.readouterr().out
    path = tmp_path / "printed.yaml"
    path.write_text(printed, encoding="utf-8")
    config = parsed("--config", str(path))
    assert config == parsed("--config", str(given), "--run.seed", "7")
    assert (config.run.dir, config.search.weight_lr, config.search.blocks[1]["parts"]) == (
        "3e-4",
        3e-5,
        ["dense", "random"],
    )
    command_line.parse("run", ["--config", str(path), "--print_config"])
    assert capsys.readouterr().out == printed
    assert (
        set(yaml.safe_load(printed))
        == set(command_line.ALL)
        == {field.name for field in dataclasses.fields(Config)} - {"sweep"}
    )


def test_print_config_prints_no_configuration_that_would_be_refused(capsys: pytest.CaptureFixture) -> None:
    assert "search.steps" in mistake("--search.steps", "-1", "--print_config")
    assert "model.heads" in mistake("--model.heads", "7", "--print_config")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("command", ["run", "show", "derive", "evaluate", "generate", "latency", "retrain"])
def test_a_run_configuration_serves_every_command(tmp_path: Path, command: str, capsys: pytest.CaptureFixture) -> None:
    path = written(tmp_path, Config().to_yaml())
    (tmp_path / "config.yaml").write_bytes(path.read_bytes())
    positional = [] if command in ("run", "latency") else [str(tmp_path)]
    command_line.parse(command, [*positional, "--config", str(path), "--print_config"])
    printed = yaml.safe_load(capsys.readouterr().out)
    assert set(printed) == set(command_line.COMMANDS[command].sections)
    assert "split" in printed["data"] if command == "evaluate" else "split" not in printed.get("data", {})


def test_every_key_has_a_line_of_help(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as left:
        command_line.parse("run", ["--help"])
    assert left.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    keys = [
        f"--{section}.{field.name} " for section in command_line.ALL for field in dataclasses.fields(SECTIONS[section])
    ]
    assert all(key in text for key in keys) and text.count("(type: ") >= len(keys)


VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.integers() | st.text(max_size=3), max_size=2)
)
KEYS = [(section, field.name) for section, kind in SECTIONS.items() for field in dataclasses.fields(kind)]


@settings(max_examples=100, deadline=None)
@given(key=st.sampled_from(KEYS), value=VALUES | st.dictionaries(st.text(max_size=3), VALUES, max_size=2))
def test_any_value_is_valid_or_refused_by_its_key(key: tuple[str, str], value: object) -> None:
    section, name = key
    try:
        config = config_from_values({section: {name: value}}, Config(), source="file")
        config.check()
    except UserError as error:
        message = str(error)
        assert "\n" not in message and (
            f"{section}.{name}" in message or name in ("max_len", "steps", "warmup_steps", "d_model")
        )
    else:
        config.to_yaml().encode("utf-8")
