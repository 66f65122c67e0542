"""`show`: an architecture for people and for other programs. Needs no torch."""

import dataclasses
from typing import Any

from derive import Architecture
from derive.patterns import compress
from derive.strict_json import dumps
from nas.architectures import resolve_architecture
from nas.config import Config
from supernet.blocks import candidate_cost


def show_architecture(name: str, config: Config, form: str) -> None:
    """Print a file, preset or pattern as text, JSON, a pattern, or the tuple of letters that layer-order arguments take."""
    arch = resolve_architecture(name, config, vocab_size=256)
    printers = {"text": text, "json": as_json, "pattern": lambda arch: arch.pattern, "tuple": lambda arch: repr(tuple(arch.pattern))}
    print(printers[form](arch).rstrip())


def as_json(arch: Architecture) -> str:
    """The architecture file, costs filled in."""
    return dumps((arch if arch.cost else arch.with_cost(arch.model.max_len)).to_json())


def text(arch: Architecture) -> str:
    """Pattern, sizes, costs, a line a layer, and what was overruled."""
    length = arch.model.max_len
    latency = arch.cost.get("latency_ms")
    lines = [
        f"name        {arch.name}",
        f"task        {arch.task}",
        f"pattern     {arch.pattern}",
        f"compressed  {compress(arch.pattern)}",
        f"layers      {len(arch.layers)}",
        f"model       {', '.join(f'{key} {value}' for key, value in arch.model.to_mapping().items())}",
        f"parameters  {arch.parameters():,}",
        f"FLOPs       {arch.flops_per_token(length):,} a token at length {length}",
        f"cost        {arch.relative_flops(length):.3f} of the interleaved layers' FLOPs",
        f"latency     {f'{latency:.3f} ms' if latency is not None else 'not measured'}",
        "",
        *_layer_table(arch),
    ]
    return "\n".join([*lines, *_evidence(arch)])


def _layer_table(arch: Architecture) -> list[str]:
    rows = []
    for index, layer in enumerate(arch.layers):
        parameters, flops = candidate_cost(layer, arch.model, arch.model.max_len)
        rows.append(f"{index:>5}  {layer.letter}  {layer.label:<40} {parameters:>12,} {flops:>14,}")
    return [f"{'layer':>5}     {'block':<40} {'parameters':>12} {'FLOPs/token':>14}", *rows]


def _evidence(arch: Architecture) -> list[str]:
    evidence: dict[str, Any] = arch.evidence
    if not evidence:
        return []
    verdict = evidence.get("verdict", {})
    lines = ["", "converged" if verdict.get("converged") else "not converged", *(f"  {r}" for r in verdict.get("reasons", []))]
    for rule in evidence.get("rules", []):
        supported = "" if rule.get("supported", True) else " (not supported by the evidence)"
        lines.append(f"rule {rule['rule']} = {rule['value']}{supported}: {rule['reason']}")
    for row in evidence.get("overruled", []):
        lines.append(f"overruled: layer {row['layer']}: {row['preferred']} -> {row['chosen']} by {row['rule']}")
    return lines
