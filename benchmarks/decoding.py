"""What the cache of generation saves: python benchmarks/decoding.py

Tokens a second of `model.generate` against a loop that runs the whole network for each token, at two widths and
lengths, for an interleaved layout (sf) and one of random synthesizers (rf), as built and as `for_inference` makes it;
alternating in one process, one thread. Every text is one row that fills the model's length from a prompt of one token.
Prints medians and ratios to the loop.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from derive import Architecture, build
from supernet.inference import for_inference
from supernet.network import Network


@torch.no_grad()
def uncached(model: Network, prompt: Tensor, count: int) -> Tensor:
    """Greedy, with a full forward pass for each token."""
    tokens = prompt
    for _ in range(count):
        tokens = torch.cat((tokens, model(tokens)[:, -1].argmax(dim=-1, keepdim=True)), dim=1)
    return tokens


def measured(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of a core for each call, taken in turn; one round to warm up. With one thread that is the time on
    an idle machine."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            started = time.process_time()
            call()
            times[name].append(time.process_time() - started)
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def compare(pattern: str, width: int, length: int, rounds: int) -> None:
    """Print one block of the table."""
    torch.manual_seed(0)
    sizes = {"d_model": width, "heads": 4, "d_inner": 4 * width, "max_len": length}
    model = build(Architecture.from_pattern(pattern, model=sizes)).eval()
    slim, prompt, count = for_inference(model), torch.zeros(1, 1, dtype=torch.int64), length - 1
    seconds = measured(
        {
            "uncached": lambda: uncached(model, prompt, count),
            "cached": lambda: model.generate(prompt, count, temperature=0),
            "cached, for_inference": lambda: slim.generate(prompt, count, temperature=0),
        },
        rounds,
    )
    print(f"{pattern}, d {width}, {length} tokens")
    for name, median in seconds.items():
        print(f"  {name:<22} {count / median:8.0f} tokens/s  ratio {seconds['uncached'] / median:.2f}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for pattern in ("(sf)x4", "(rf)x4"):
        for width in (64, 256):
            for length in (64, 512):
                compare(pattern, width, length, options.rounds)


if __name__ == "__main__":
    main()
