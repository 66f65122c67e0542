"""Weights too large for one device: fully sharded data parallel (FSDP2); and checkpoints that depend neither on it nor
on the processes."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from nas.machine.device import Machine
from nas.machine.distributed import is_shared, processes

# torch's modules for sharding are imported where they are used: together they take two seconds, and few runs need them.


def shard(model: nn.Module, machine: Machine) -> None:
    """Share out the weights among the processes, one unit a candidate, so that those that do not run are not gathered.

    The alphas stay whole everywhere.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(machine.device.type, (machine.world,))
    for layer in model.layers:
        for unit in getattr(layer, "candidates", [layer]):
            if any(True for _ in unit.parameters()):
                fully_shard(unit, mesh=mesh)
    fully_shard(
        model, mesh=mesh, ignored_params={parameter for name, parameter in model.named_parameters() if name == "alphas"}
    )


def gathered(value: Any) -> Any:
    """The value with every sharded tensor in it whole and on the CPU; all processes must call it."""
    if isinstance(value, dict):
        return {key: gathered(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(gathered(item) for item in value)
    return value.full_tensor().cpu() if is_shared(value) else value


def whole_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """The model's whole state, in every process; all must call it."""
    if not is_sharded(model):
        return dict(model.state_dict())
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    return gathered(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)))


def load_whole_weights(model: nn.Module, saved: dict[str, torch.Tensor]) -> None:
    """Give a model, sharded or not, its whole state; keys are strict."""
    if not is_sharded(model):
        model.load_state_dict(saved)
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    set_model_state_dict(model, saved, options=StateDictOptions(full_state_dict=True))


def is_sharded(model: nn.Module) -> bool:
    """Whether the model's weights are shared out among the processes."""
    return any(map(is_shared, model.parameters()))


def scattered_moments(saved: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """A whole state of the optimizer, its moments sharded as the parameters are."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {
        index: {name: _like(value, parameters[index]) if name != "step" else value for name, value in moments.items()}
        for index, moments in saved["state"].items()
    }
    return {**saved, "state": state}


def gathered_rows(memory: torch.Tensor | None) -> torch.Tensor | None:
    """The memory [N, B, M', d] of all processes' rows in the order of the whole batch, on the CPU; all processes must
    call it."""
    if memory is None or processes() == 1:
        return None if memory is None else memory.cpu()
    parts = [torch.empty_like(memory) for _ in range(processes())]
    dist.all_gather(parts, memory.contiguous())
    return torch.stack(parts, dim=2).flatten(1, 2).cpu()  # process r of K has the rows r, r + K, ...


def scattered_rows(memory: torch.Tensor | None, model: nn.Module) -> torch.Tensor | None:
    """This process's rows of the memory of a whole batch, where the model is; none in any process where the rows do not
    come out even."""
    if memory is None or memory.shape[1] % processes():
        return None
    mine = memory if processes() == 1 else memory[:, dist.get_rank() :: processes()]
    return mine.contiguous().to(next(model.parameters()).device)


def _like(value: torch.Tensor, sharded: torch.Tensor | None) -> torch.Tensor:
    if not is_shared(sharded):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(sharded.device), sharded.device_mesh, sharded.placements)
