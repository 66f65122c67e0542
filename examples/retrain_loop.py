"""A derived architecture in a training loop of one's own, without `nas`: python examples/retrain_loop.py ARCHITECTURE
TEXT"""

import sys
from pathlib import Path

import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it also runs from a clone that is not installed

from derive import Architecture, build


def batch(text: torch.Tensor, length: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Sixteen random crops: inputs and targets [16, length]."""
    starts = torch.randint(len(text) - length, (16, 1), generator=generator)
    crops = text[starts + torch.arange(length + 1)].long()
    return crops[:, :-1], crops[:, 1:]


def main(architecture: str, file: str, steps: int) -> None:
    """Train on the bytes of a file and print the loss."""
    torch.manual_seed(0)
    arch = Architecture.load(architecture)
    if arch.model.vocab_size != 256:
        sys.exit(f"{architecture} is for {arch.model.vocab_size} tokens; this loop reads bytes, of which there are 256")
    model = build(arch)
    print(f"{arch.name}: {arch.pattern}, {arch.parameters():,} parameters")
    text = torch.frombuffer(bytearray(Path(file).read_bytes()), dtype=torch.uint8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    for step in range(1, steps + 1):
        inputs, targets = batch(text, arch.model.max_len, generator)
        loss = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == 1:
            print(f"step {step}: loss {loss.item():.3f} nats a byte")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) == 4 else 200)
