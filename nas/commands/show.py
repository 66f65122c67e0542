"""`show`: an architecture for people and for other programs. Needs no torch."""

from typing import Any

from derive import Architecture
from derive.patterns import compress
from derive.strict_json import dumps
from nas.config.sections import Config
from nas.stages.architectures import resolve_architecture
from supernet.blocks import candidate_cost
from supernet.errors import UserError


def show_architecture(name: str, config: Config, form: str) -> None:
    """Print a file, preset or pattern in one of FORMATS."""
    arch = resolve_architecture(name, config, vocab_size=256)
    print(FORMATS[form](arch).rstrip())


def as_pattern(arch: Architecture) -> str:
    """One letter a layer."""
    return arch.pattern


def as_tuple(arch: Architecture) -> str:
    """The tuple that x-transformers takes as `custom_layers`: "a" attention, "f" feed-forward; identity layers fall
    away.

    UserError where a layer is of a kind that such an order cannot name.
    """
    names = {"self_attention": "a", "feed_forward": "f"}
    for index, layer in enumerate(arch.layers):
        if layer.block not in {*names, "identity"}:
            raise UserError(
                f"layers[{index}]: {layer.label} has no name in a tuple of layer orders, which knows attention and "
                "feed-forward alone; use --format json"
            )
    return repr(tuple(names[layer.block] for layer in arch.layers if layer.block != "identity"))


def as_table(arch: Architecture) -> str:
    """A line a layer: block, parameters, FLOPs."""
    return "\n".join(_layer_table(arch))


def as_picture(arch: Architecture) -> str:
    """The layout as SVG: `show ARCH --format picture > layout.svg`."""
    import matplotlib
    from matplotlib.figure import Figure

    from nas.pictures.plots import render
    from nas.pictures.plots_base import RC
    from nas.pictures.plots_layouts import architecture_size, draw_architecture

    with matplotlib.rc_context(RC):
        figure = Figure(figsize=architecture_size(arch), layout="constrained")
        draw_architecture(arch, figure)
    return render(figure, "svg").decode("utf-8")


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
    lines = [
        "",
        "converged" if verdict.get("converged") else "not converged",
        *(f"  {r}" for r in verdict.get("reasons", [])),
    ]
    for rule in evidence.get("rules", []):
        supported = "" if rule.get("supported", True) else " (not supported by the evidence)"
        lines.append(f"rule {rule['rule']} = {rule['value']}{supported}: {rule['reason']}")
    for row in evidence.get("overruled", []):
        lines.append(f"overruled: layer {row['layer']}: {row['preferred']} -> {row['chosen']} by {row['rule']}")
    return lines


FORMATS = {
    "text": text,
    "table": as_table,
    "picture": as_picture,
    "json": as_json,
    "pattern": as_pattern,
    "tuple": as_tuple,
}
