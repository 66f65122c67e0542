"""The small commands on the debug preset's run: derive, plot, report, evaluate, latency."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_runs import ROOT, call, environment, error_line, tiny_yaml

from derive import Architecture, build

DEBUG = ROOT / "configs" / "debug.yaml"


@pytest.fixture
def run(debug_run: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    return Path(shutil.copytree(debug_run, tmp_path / debug_run.name))


def layouts(run: Path) -> dict[str, str]:
    return {path.stem: Architecture.load(path).pattern for path in (run / "architectures").glob("*.json")}


def test_derive_again_changes_nothing(run: Path) -> None:
    before = {path: path.read_bytes() for path in (run / "architectures").glob("*.json")}
    done = call("derive", run)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith(("converged", "not converged"))
    assert {line.split()[0] for line in done.stdout.splitlines()[1:]} == {"argmax", "par-rule", "budget"}
    assert {path: path.read_bytes() for path in (run / "architectures").glob("*.json")} == before


def test_a_forced_cut_and_ratio_are_obeyed(run: Path) -> None:
    for cut, ratio, wanted in ((1.0, 1, "1111"), (0.5, 2, "1100"), (1.0, 4, "1000"), (1.0, 2, "1010")):
        assert call("derive", run, "--derive.cut", cut, "--derive.ratio", ratio).returncode == 0
        layers = Architecture.load(run / "architectures" / "par-rule.json").layers
        assert "".join(str(int(layer.attention_like)) for layer in layers) == wanted


def test_a_forced_budget_is_kept_and_an_impossible_one_names_the_least(run: Path) -> None:
    costs = json.loads((run / "probabilities.json").read_text())["cost"]["candidates"]
    baseline = 2 * (costs["self_attention"] + costs["feed_forward"])
    for budget in (0.05, 0.3, 0.5):
        done = call("derive", run, f"--derive.budget={budget}")
        layers = Architecture.load(run / "architectures" / "budget.json").layers
        assert sum(costs[layer.label] for layer in layers) <= budget * baseline * (1 + 1e-9)
        assert done.returncode == 0
    rules = "[{block: identity, at_most: 0}]"
    line = error_line(call("derive", run, "--derive.budget", 0.01, "--derive.rules", rules))
    least = float(line.rsplit(" ", 1)[1])
    assert (
        0.1 < least < 1
        and call("derive", run, "--derive.budget", round(least + 5e-4, 3), "--derive.rules", rules).returncode == 0
    )


def test_choices_that_are_not_given_are_those_of_the_run(run: Path) -> None:
    config = run / "config.yaml"
    config.write_text(
        config.read_text()
        .replace("cut: null", "cut: 1.0")
        .replace("ratio: null", "ratio: 1.0")
        .replace("selection: last", "selection: average")
    )
    call("derive", run)
    forced = Architecture.load(run / "architectures" / "par-rule.json")
    assert all(layer.attention_like for layer in forced.layers) and forced.provenance["selection"] == "average"
    call("derive", run, "--derive.selection", "last")
    assert Architecture.load(run / "architectures" / "par-rule.json").provenance["selection"] == "last"


@pytest.mark.parametrize("command", ["derive", "plot", "report"])
def test_a_folder_that_is_no_run(tmp_path: Path, command: str) -> None:
    for folder in (tmp_path, tmp_path / "none", tmp_path / "file"):
        (tmp_path / "file").touch()
        assert str(folder) in error_line(call(command, folder))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


@pytest.mark.parametrize("damage", ["{", "[]", '{"candidates": ["self_attention"]}', "NaN", "\x00"])
def test_damaged_probabilities_are_named(run: Path, damage: str) -> None:
    (run / "probabilities.json").write_text(damage)
    before = layouts(run)
    for command in ("derive", "plot", "report"):
        assert "probabilities.json" in error_line(call(command, run))
    assert layouts(run) == before


def test_report_is_rebuilt(run: Path) -> None:
    (run / "report.html").unlink()
    done = call("report", run)
    assert done == (0, f"{run / 'report.html'}\n", "") and (run / "report.html").stat().st_size > 1000


def figures(printed: str) -> dict[str, str]:
    return {line.split()[0]: line.split()[1] for line in printed.splitlines()}


def test_evaluate_prints_loss_tokens_perplexity_and_bits(debug_run: Path, tmp_path: Path) -> None:
    weights = debug_run / "retrain" / "par" / "seed-0" / "model.safetensors"
    text = tmp_path / "text.txt"
    text.write_bytes((b"It was the best of times, it was the worst of times. " * 400)[:20000])
    losses = {}
    for split in ("held_out", "test"):
        done = call("evaluate", weights, "--data.name", "text", "--data.path", text, "--data.split", split)
        assert done.returncode == 0 and done.stderr == ""
        found = figures(done.stdout)
        losses[split] = float(found["loss"])
        assert found["split"] == split and int(found["tokens"]) == 999
        assert float(found["perplexity"]) == pytest.approx(math.exp(losses[split]), rel=1e-5)
        assert float(found["bits_per_character"]) == pytest.approx(losses[split] / math.log(2), abs=1e-5)
    assert losses["held_out"] != losses["test"]
    default = call("evaluate", weights.parent, "--data.name", "text", "--data.path", text)
    assert (
        figures(default.stdout)["split"] == "held_out" and float(figures(default.stdout)["loss"]) == losses["held_out"]
    )


def test_evaluate_refuses_what_does_not_fit(debug_run: Path, tmp_path: Path) -> None:
    home = Path(shutil.copytree(debug_run / "retrain" / "par" / "seed-0", tmp_path / "home"))
    text = tmp_path / "text.txt"
    text.write_text("a b c d " * 500)
    weights = home / "model.safetensors"
    chars = error_line(call("evaluate", weights, "--data.name", "text", "--data.path", text, "--data.tokens", "chars"))
    assert "vocabulary" in chars and "256" in chars
    assert "architecture.json" in error_line(call("evaluate", debug_run / "checkpoint.pt"))
    assert "none.safetensors" in error_line(call("evaluate", home / "none.safetensors"))
    state = load_file(weights)
    save_file({name: value for name, value in list(state.items())[1:]}, weights)
    assert "model.safetensors" in error_line(call("evaluate", weights))
    wide = json.loads((home / "architecture.json").read_text())
    (home / "architecture.json").write_text(
        json.dumps({**wide, "model": {**wide["model"], "d_model": 2**30, "heads": 1}})
    )
    assert "GiB" in error_line(call("evaluate", weights))
    (home / "architecture.json").write_text('{"format": "par-architecture"}')
    assert "architecture.json" in error_line(call("evaluate", weights))
    assert "data.split" in error_line(call("evaluate", weights, "--data.split", "train"))
    assert "run.device" in error_line(call("evaluate", debug_run / "retrain" / "par" / "seed-0", "--run.device", "gpu"))


def test_generate_goes_on_with_the_prompt(debug_run: Path) -> None:
    home = debug_run / "retrain" / "par" / "seed-0"

    def made(*options: object) -> str:
        done = call("generate", home, "--prompt", "Fellow citizens", *options)
        assert (
            done.returncode == 0
            and done.stderr == ""
            and done.stdout.startswith("Fellow citizens")
            and done.stdout.endswith("\n")
        )
        return done.stdout

    assert made("--tokens", 0) == "Fellow citizens\n"
    assert (
        made("--tokens", 70)
        == made("--tokens", 70)
        == made("--tokens", 70, "--seed", 0)
        == made("--tokens", 70, "--run.seed", 0)
    )
    assert len({made("--tokens", 70), made("--tokens", 70, "--seed", 5), made("--tokens", 70, "--top_k", 2)}) == 3
    greedy = made("--tokens", 70, "--temperature", 0)
    assert (
        greedy
        == made("--tokens", 70, "--top_k", 1, "--seed", 3)
        == made("--tokens", 70, "--temperature", 0, "--seed", 3)
    )
    weights = home / "model.safetensors"
    model = build(Architecture.load(home / "architecture.json"))
    model.load_state_dict(load_file(weights))
    tokens = model.generate(torch.tensor([list(b"Fellow citizens")]), 70, temperature=0)
    assert call("generate", weights, "--prompt", "Fellow citizens", "--tokens", 70, "--temperature", 0).stdout == greedy
    assert bytes(tokens[0].tolist()).decode("utf-8", errors="replace") + "\n" == greedy


@pytest.mark.parametrize("tokens", ["chars", "words"])
def test_generate_from_a_network_with_memory_trained_on_ones_own_text(tmp_path: Path, tokens: str) -> None:
    (tmp_path / "text.txt").write_text("the cat sat on the mat\nand the dog sat on the cat\n" * 200, encoding="utf-8")
    text = ("--data.name", "text", "--data.path", tmp_path / "text.txt", "--data.tokens", tokens)
    config = tiny_yaml(
        tmp_path / "tiny.yaml",
        model__position="relative",
        model__memory_len=5,
        retrain__steps=60,
        retrain__lr=0.02,
        retrain__against=[],
    )
    assert call("retrain", "sqf", "--config", config, *text, "--run.dir", tmp_path / "run").returncode == 0
    home = tmp_path / "run" / "retrain" / "sqf" / "seed-0"
    done = call("generate", home, *text, "--prompt", "the cat", "--tokens", 40, "--temperature", 0.5)
    assert done.returncode == 0 and done.stderr == "" and done.stdout.startswith("the cat")
    assert len(done.stdout) == 7 + 40 + 1 if tokens == "chars" else len(done.stdout.split()) > 30
    assert "vocabulary" in error_line(call("generate", home, "--prompt", "the cat"))
    if tokens == "words":
        assert "prompt" in error_line(call("generate", home, *text, "--prompt", " "))


def test_generate_refuses_what_does_not_fit(debug_run: Path, tmp_path: Path) -> None:
    home = debug_run / "retrain" / "par" / "seed-0"
    for options, words in (
        ((), "prompt: expected the text"),
        (("--prompt", ""), "prompt: expected the text"),
        (("--prompt", "x", "--tokens", -1), "tokens: expected"),
        (("--prompt", "x", "--temperature", ".nan"), "temperature: expected"),
        (("--prompt", "x", "--temperature", -1), "temperature: expected"),
        (("--prompt", "x", "--top_k", 0), "top_k: expected"),
        (("--prompt", "x", "--seed", -1), "seed: expected"),
        (("--prompt", "x", "--data.eval_memory_len", 4), "data.eval_memory_len"),
        (("--prompt", "x", "--data.tokens", "chars"), "vocabulary"),
        (("--prompt", "x", "--run.device", "gpu"), "run.device"),
    ):
        assert words in error_line(call("generate", home, *options))
    assert "none.safetensors" in error_line(call("generate", tmp_path / "none.safetensors", "--prompt", "x"))


def test_generate_reads_over_the_rows_that_a_file_asks_for(debug_run: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(b"It was the best of times. " * 10)
    home = debug_run / "retrain" / "par" / "seed-0"
    text = ("--data.name", "text", "--data.path", tmp_path / "text.txt", "--prompt", "It", "--tokens", 5)
    config = tiny_yaml(tmp_path / "c.yaml", data__seq_len=9999, data__eval_seq_len=9999, data__batch_size=7)
    plain, with_file = call("generate", home, *text), call("generate", home, *text, "--config", config)
    assert plain.returncode == 0 and plain.stderr == "" and with_file == plain
    for key in ("data.seq_len", "run.compile", "data.micro_batch_size", "run.log_every"):
        assert f"{key}: this command does not take it" in error_line(call("generate", home, *text, f"--{key}=1"))


def test_generate_writes_out_what_standard_output_cannot_hold(debug_run: Path, tmp_path: Path) -> None:
    home = debug_run / "retrain" / "par" / "seed-0"
    given = (sys.executable, ROOT / "search.py", "generate", home, "--prompt", "né🙂", "--tokens", "0")
    for encoding, wanted in (
        ("ascii", b"n\\xe9\\U0001f642\n"),
        ("latin-1", b"n\xe9\\U0001f642\n"),
        ("utf-8", "né🙂\n".encode()),
    ):
        done = subprocess.run(
            given, env={**environment(), "PYTHONIOENCODING": encoding}, capture_output=True, cwd=tmp_path
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, wanted, b"")


@pytest.mark.parametrize("temperature", [0, 1])
def test_generate_names_a_file_whose_weights_are_not_finite(debug_run: Path, tmp_path: Path, temperature: int) -> None:
    home = Path(shutil.copytree(debug_run / "retrain" / "par" / "seed-0", tmp_path / "home"))
    weights = home / "model.safetensors"
    save_file({name: value * math.nan for name, value in load_file(weights).items()}, weights)
    line = error_line(call("generate", home, "--prompt", "x", "--temperature", temperature))
    assert f"{weights}: the weights are not finite" in line


def test_generate_names_the_precision_in_which_finite_weights_overflow(debug_run: Path, tmp_path: Path) -> None:
    home = Path(shutil.copytree(debug_run / "retrain" / "par" / "seed-0", tmp_path / "home"))
    state = load_file(home / "model.safetensors")
    save_file(
        {name: value * 1e6 if name == "norm.weight" else value for name, value in state.items()},
        home / "model.safetensors",
    )
    assert "run.precision: " in error_line(call("generate", home, "--prompt", "x", "--run.precision", "fp16"))
    assert call("generate", home, "--prompt", "x", "--run.precision", "fp32").returncode == 0


def test_latency_prints_every_candidate_and_writes_where_asked(tmp_path: Path) -> None:
    config = tiny_yaml(tmp_path / "tiny.yaml", search__blocks=["self_attention[heads=1]", "identity"])
    done = call("latency", "--config", config, "--run.dir", tmp_path / "out")
    assert done.returncode == 0 and done.stderr == ""
    table = json.loads((tmp_path / "out" / "latency.json").read_text())
    for label in ("self_attention[heads=1]", "identity", "self_attention", "feed_forward"):
        assert label in done.stdout and table["candidates"][label]["median_ms"] > 0
    assert call("latency", "--config", config).returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "tiny.yaml"]
    (tmp_path / "out" / "config.yaml").touch()
    assert "run.dir" in error_line(call("latency", "--config", config, "--run.dir", tmp_path / "out"))
    assert "run.dir" in error_line(call("latency", "--config", config, "--run.dir", config))
    assert "model.heads" in error_line(call("latency", "--config", config, "--model.heads", 3))
