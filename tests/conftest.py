"""Shared by all tests: one torch thread, so that sums run in one order, and a user's block that goes away again."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from supernet.blocks import BLOCKS, register_block
from supernet.settings import ModelSettings

torch.set_num_threads(1)


class Gate(nn.Module):
    """A user's block with options of every type: two projections with a tanh between; padded positions give 0."""

    def __init__(
        self, config: ModelSettings, *, width: int = 3, bias: bool = False, scale: float = 0.5, kind: str = "soft"
    ):
        super().__init__()
        self.inner = nn.Linear(config.d_model, width, bias=bias)
        self.outer = nn.Linear(width, config.d_model)
        self.register_buffer("scale", torch.tensor(scale))
        self.kind = kind

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """x [B, T, d] -> [B, T, d]."""
        y = self.outer(torch.tanh(self.inner(x))) * self.scale
        return y if mask is None else y * mask.unsqueeze(-1)

    @staticmethod
    def flops_per_token(config: ModelSettings, seq_len: int) -> int:
        """Both projections at the default width."""
        return 2 * 2 * config.d_model * 3


@pytest.fixture
def gate_block() -> Iterator[str]:
    """The name of a registered user's block with the letter g."""
    register_block("gate", letter="g")(Gate)
    yield "gate"
    del BLOCKS["gate"]


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Token files of tests lie in a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("own_cache")))
        yield


@pytest.fixture(scope="session")
def debug_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of the debug preset, made by a real process; tests read it and copy it before they change it."""
    from tiny_runs import ROOT, command

    root = tmp_path_factory.getbasetemp()
    home = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "debug"
    home.mkdir(exist_ok=True)
    with open(home / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several workers of pytest share one run
        if not (home / "stderr").exists():
            config = ROOT / "configs" / "debug.yaml"
            done = command("run", "--config", config, "--run.dir", "folder", "--run.workers", 1, cwd=home)
            assert done.returncode == 0, done.stderr
            (home / "stdout").write_text(done.stdout, encoding="utf-8")
            (home / "stderr").write_text(done.stderr, encoding="utf-8")
    return home / "folder"
