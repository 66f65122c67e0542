"""The weights of a trained network in a file."""

from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import nn

from derive import Architecture, build
from nas.machine.sharding import whole_weights
from supernet.errors import UserError
from supernet.network import Network


def save_weights(model: nn.Module, path: Path) -> None:
    """Every parameter and buffer as safetensors, written whole or not at all."""
    state = {name: value.detach().contiguous().cpu() for name, value in whole_weights(model).items()}
    temporary = path.with_name(f".{path.name}.tmp")
    save_file(state, temporary)
    temporary.replace(path)


def load_weights(model: nn.Module, path: Path) -> None:
    """Load `model.safetensors` with strict keys; UserError names the file when it does not fit."""
    try:
        model.load_state_dict(load_file(path))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except Exception as error:
        first = " ".join(str(error).split())[:300]
        raise UserError(f"{path}: not the weights of the architecture beside it: {first}") from None


def load_trained(home: Path) -> Network:
    """The network of a retraining's folder, on the CPU."""
    model = build(Architecture.load(home / "architecture.json"))
    load_weights(model, home / "model.safetensors")
    return model
