"""The times of layers summed against the time of the network they make: python benchmarks/predicted_latency.py

Five layouts at each of four sizes, one thread, forward as comparison.csv measures it. Layers and networks are measured
anew in each of ROUNDS rounds, since a machine is faster in one second than in another; prints each layout's median of
predicted over measured, and the median of those.
"""

import statistics

import torch

from derive import Architecture, build
from nas.config.sections import Config, DataConfig, LatencyConfig, ModelConfig, RunConfig
from nas.costs.latency import LayerTimes, measure_network, shape_of
from nas.machine.device import choose_machine
from supernet.inference import for_inference

PATTERNS = ("sfsfsfsf", "sffsffff", "sfffifii", "dfffffii", "sqqfffff")
ROUNDS = 7
SIZES = {  # name -> (data, model, rows)
    "the default": ({}, {}, 1),
    "16 rows": ({}, {}, 16),
    "d 256, 128 tokens": ({"seq_len": 128}, {"d_model": 256, "d_inner": 1024}, 1),
    "relative, memory of 64": ({}, {"position": "relative", "memory_len": 64}, 1),
}


def ratios(config: Config) -> list[float]:
    """Predicted over measured time of each layout, the median of the rounds."""
    settings, machine = config.model.settings(256, config.data.seq_len), choose_machine(config.run)
    found: dict[str, list[float]] = {pattern: [] for pattern in PATTERNS}
    for _ in range(ROUNDS):
        times = LayerTimes(config, machine)
        for pattern in PATTERNS:
            arch = Architecture.from_pattern(pattern, {**settings.to_mapping(), "task": settings.task})
            measured = measure_network(for_inference(build(arch)), shape_of(config), machine)["median_ms"]
            found[pattern].append(times.predict(arch) / measured)
    return [statistics.median(values) for values in found.values()]


def main() -> None:
    """A line a size."""
    torch.set_num_threads(1)
    for name, (data, model, rows) in SIZES.items():
        config = Config(
            run=RunConfig(device="cpu"),
            data=DataConfig(**data),
            model=ModelConfig(**model),
            latency=LatencyConfig(batch_size=rows),
        )
        found = ratios(config)
        told = "  ".join(f"{pattern} {ratio:.3f}" for pattern, ratio in zip(PATTERNS, found, strict=True))
        print(f"{name:<24} median {statistics.median(found):.3f}  {told}", flush=True)


if __name__ == "__main__":
    main()
