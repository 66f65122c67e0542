"""Agreement of seeds, layer by layer, computed by hand."""

import json
from pathlib import Path

import pytest

from derive.strict_json import write_json
from nas.searching.agreement import write_agreement


def test_agreement(tmp_path: Path) -> None:
    last = {3: [[0.6, 0.4], [0.2, 0.8]], 4: [[0.7, 0.3], [0.9, 0.1]], 5: [[0.8, 0.2], [0.4, 0.6]]}
    homes = []
    for seed, rows in last.items():
        homes.append(tmp_path / f"seed-{seed}")
        write_json(
            homes[-1] / "probabilities.json",
            {
                "candidates": ["self_attention", "identity"],
                "probabilities": [[[0.5, 0.5]] * 2, rows],
                "seed": seed,
                "verdict": {"converged": seed != 4, "reasons": ["x"]},
            },
        )
    write_agreement(tmp_path, homes)
    content = json.loads((tmp_path / "agreement.json").read_text())
    assert (content["seeds"], content["candidates"]) == ([3, 4, 5], ["self_attention", "identity"])
    assert content["converged"] == [True, False, True] and content["agree"] == pytest.approx((1 + 2 / 3) / 2)
    first, second = content["layers"]
    assert first["layer"] == 0 and first["argmax"] == ["self_attention"] * 3 and first["agree"] == 1
    assert second["argmax"] == ["identity", "self_attention", "identity"] and second["agree"] == pytest.approx(2 / 3)
    assert first["mean"] == pytest.approx([0.7, 0.3]) and first["spread"] == pytest.approx([0.1, 0.1])
