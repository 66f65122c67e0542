"""`show`: what a person and another program get, without torch."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tiny_runs import ROOT, environment, tiny

from derive import Architecture, build
from nas.commands.show import show_architecture
from supernet.errors import UserError


def shown(capsys: pytest.CaptureFixture, name: str, form: str = "text", **changes: object) -> str:
    show_architecture(name, tiny(**changes), form)
    return capsys.readouterr().out


def test_text_has_pattern_sizes_and_a_line_a_layer(capsys: pytest.CaptureFixture) -> None:
    text = shown(capsys, "(sf)x2qi")
    arch = Architecture.from_pattern("sfsfqi", {**tiny().model.settings(256, 16).to_mapping()})
    counted = sum(parameter.numel() for parameter in build(arch).parameters())
    assert "pattern     sfsfqi\n" in text and f"parameters  {counted:,}\n" in text
    assert f"FLOPs       {arch.flops_per_token(16):,} a token at length 16\n" in text and "not measured" in text
    rows = [line.split() for line in text.splitlines() if line[:5].strip().isdigit()]
    assert [(row[0], row[1]) for row in rows] == [(str(k), letter) for k, letter in enumerate("sfsfqi")]
    assert rows[-1][2:] == ["identity", "0", "0"]
    relative = float(text.split("cost")[1].split()[0])
    assert relative == pytest.approx(arch.relative_flops(16), abs=5e-4)


def test_json_is_an_architecture_file_with_costs(capsys: pytest.CaptureFixture) -> None:
    arch = Architecture.from_json(json.loads(shown(capsys, "sf", "json")))
    assert arch.pattern == "sf" and arch.cost["parameters"] == arch.parameters()


def test_pattern_and_tuple_are_for_programs(capsys: pytest.CaptureFixture) -> None:
    assert shown(capsys, "(sf)x2", "pattern") == "sfsf\n"
    assert ast.literal_eval(shown(capsys, "(sfi)x2", "tuple")) == ("a", "f", "a", "f")


def test_a_tuple_refuses_what_it_cannot_name() -> None:
    with pytest.raises(UserError, match=r"layers\[1\]: random_synthesizer"):
        show_architecture("sr", tiny(), "tuple")


def test_the_picture_is_an_svg_with_a_cell_a_layer(capsys: pytest.CaptureFixture) -> None:
    root = ElementTree.fromstring(shown(capsys, "sffr", "picture"))
    assert root.tag.endswith("svg")
    assert "random_synthesizer" not in shown(capsys, "sffr", "table").splitlines()[1]
    assert shown(capsys, "sffr", "table").splitlines()[4].split()[:3] == ["3", "r", "random_synthesizer"]


def test_model_and_derive_options_count_for_the_two_presets(capsys: pytest.CaptureFixture) -> None:
    assert shown(capsys, "interleaved", "pattern", model__layers=8) == "sf" * 4 + "\n"
    assert shown(capsys, "par", "pattern", model__layers=8, derive__cut=1.0, derive__ratio=2) == "sf" * 4 + "\n"
    assert "d_model 24" in shown(capsys, "interleaved", model__d_model=24)


def test_a_file_shows_its_evidence_and_its_own_costs(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "a.json"
    value = Architecture.from_pattern("ff").to_json()
    value["evidence"] = {
        "candidates": ["feed_forward", "identity"],
        "probabilities": [[0.4, 0.6], [0.9, 0.1]],
        "rules": [{"rule": "cut", "value": 0.5, "reason": "because", "supported": False}],
        "verdict": {"converged": False, "reasons": ["too few steps"]},
        "overruled": [{"layer": 0, "preferred": "identity", "chosen": "feed_forward", "rule": "budget"}],
    }
    value["cost"] = {
        "parameters": 1,
        "flops_per_token": 2,
        "latency_ms": 1.25,
        "relative_to_interleaved": {"flops": 0.5, "latency": 0.4},
    }
    path.write_text(json.dumps(value))
    text = shown(capsys, str(path))
    assert "latency     1.250 ms" in text and "not converged\n  too few steps" in text
    assert "rule cut = 0.5 (not supported by the evidence): because" in text
    assert "overruled: layer 0: identity -> feed_forward by budget" in text
    assert json.loads(shown(capsys, str(path), "json"))["cost"]["latency_ms"] == 1.25


@pytest.mark.parametrize("arguments", [["show", "par"], ["--help"], ["show", "--help"], ["run", "--print_config"]])
def test_what_needs_no_torch_does_not_import_it_and_starts_fast(arguments: list[str], tmp_path: Path) -> None:
    script = (
        "import sys, resource, search\n"
        "try: search.main(sys.argv[1:])\n"
        "except SystemExit as left: assert not left.code\n"
        "usage = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print([name for name in ('torch', 'matplotlib', 'scipy') if name in sys.modules], usage.ru_utime, "
        "file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], env=environment(), cwd=tmp_path, capture_output=True, text=True
    )
    found, seconds = done.stderr.rsplit(" ", 1)
    assert found == "[]" and float(seconds) < 1.5, done.stderr  # processor time, so that other processes do not count
    assert done.stdout and Path(ROOT / "search.py").exists()
