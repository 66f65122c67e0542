"""Compiling many modules of one class: torch's limit of variants, beyond which they run eager, grows with them."""

import pytest
from torch import nn

from nas.machine.device import compile_each


def test_the_limit_grows_with_the_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo import config as limits

    for name in ("recompile_limit", "accumulated_recompile_limit"):
        monkeypatch.setattr(limits, name, getattr(limits, name))
    before, compiled = limits.recompile_limit, []
    monkeypatch.setattr(nn.Module, "compile", lambda self: compiled.append(self))
    modules = [nn.Linear(2, 2) for _ in range(30)]
    compile_each(iter(modules))
    assert compiled == modules
    assert limits.recompile_limit >= before + 3 * 30 and limits.accumulated_recompile_limit >= limits.recompile_limit
