"""Write parameter_names.json: the names and shapes of every block's tensors, which checkpoints and files rely on."""

import json
from pathlib import Path

from supernet.blocks import BLOCKS, parse_candidate
from supernet.layers import build_layer
from supernet.settings import ModelSettings

PATH = Path(__file__).with_name("parameter_names.json")
SETTINGS = {  # different primes, so that a swapped axis shows; with and without what adds tensors
    "plain": ModelSettings(vocab_size=31, d_model=35, heads=5, d_inner=29, max_len=21),
    "memory, relative positions": ModelSettings(
        vocab_size=31, d_model=35, heads=5, d_inner=29, max_len=21, memory_len=7, position="relative"
    ),
}


def names_of(settings: ModelSettings) -> dict[str, dict[str, str]]:
    """Block -> name of each tensor of its layer's state -> shape, such as "35 x 29"."""
    layers = {name: build_layer(parse_candidate(name, settings), settings, 0) for name in BLOCKS}
    return {
        name: {key: " x ".join(map(str, value.shape)) for key, value in layer.state_dict().items()}
        for name, layer in layers.items()
    }


if __name__ == "__main__":
    found = {kind: names_of(settings) for kind, settings in SETTINGS.items()}
    PATH.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
