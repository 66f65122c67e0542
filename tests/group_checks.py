"""What `test_distributed.py` runs under torchrun: each function is called in all processes and asserts something of
them together."""

import contextlib
import copy
import dataclasses
import io
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from tiny_runs import CPU, assert_equal, tiny

from nas.costs.costs_table import build_costs
from nas.data.corpus import load_corpus
from nas.machine.device import Machine
from nas.machine.distributed import average, joined, require_equal, stop_asked
from nas.machine.exit_codes import without_teardown
from nas.machine.sharding import gathered
from nas.machine.stop import StopFlag
from nas.searching.search_state import build_state
from nas.searching.search_steps import arch_step, weight_step
from nas.training.setup import Setup
from supernet.errors import RunFailed
from supernet.gates import RELAXATIONS

STEPS = 14  # of which 8 are the warm-up's


def losses_of(
    relaxation: str, rows: int, machine: Machine, shard: bool = False, **changes: object
) -> tuple[list[float], torch.Tensor, list[set[str]]]:
    """Losses of some steps on batches of so many rows in all, the alphas after them, and the parameters with a gradient
    in each step."""
    config = tiny(
        search__relaxation=relaxation,
        data__batch_size=rows // machine.world,
        model__layers=3,
        run__shard=shard,
        **changes,
    )
    corpus = load_corpus(config.data)
    state, losses, trained = build_state(Setup(config, corpus, machine), 0), [], []
    costs = build_costs(config, config.model.settings(corpus.vocab_size, config.data.seq_len))
    for step in range(STEPS):
        losses.append(weight_step(state, Setup(config, corpus, machine), 0)["loss"])
        trained.append({name for name, parameter in state.model.named_parameters() if parameter.grad is not None})
        if step >= 8:
            losses.append(arch_step(state, Setup(config, corpus, machine), costs, 0)["arch_loss"])
    assert state.to_checkpoint()["step"] == STEPS
    return losses, gathered(state.model.alphas.detach()), trained


def check_steps(machine: Machine) -> None:
    """Together all processes take the steps that one takes on all rows; every process holds the same weights."""
    for relaxation in RELAXATIONS:
        alone, together = losses_of(relaxation, 6, CPU), losses_of(relaxation, 6, machine)
        assert torch.allclose(torch.tensor(alone[0]), torch.tensor(together[0]), rtol=0, atol=2e-6), relaxation
        assert torch.allclose(alone[1], together[1], rtol=0, atol=1e-4), relaxation
        assert alone[2] == together[2], relaxation  # nothing but what ran has a gradient
    remembering = {"model__memory_len": 20, "model__position": "relative"}
    for one, other in zip(
        losses_of("sampled", 6, CPU, **remembering)[0], losses_of("sampled", 6, machine, **remembering)[0], strict=True
    ):
        assert abs(one - other) < 2e-6
    sharded = losses_of("sampled", 6, machine, shard=True)
    assert torch.allclose(torch.tensor(sharded[0]), torch.tensor(together[0]), rtol=0, atol=2e-6)


def check_checkpoints(machine: Machine) -> None:
    """The state of shared-out weights is that of whole ones and can be taken up by them."""
    config = tiny(data__batch_size=3, search__relaxation="sampled", model__memory_len=20, model__position="relative")
    corpus = load_corpus(config.data)
    whole = build_state(Setup(config, corpus, machine), 0)
    for _ in range(10):
        weight_step(whole, Setup(config, corpus, machine), 0)
    sharded_config = dataclasses.replace(config, run=dataclasses.replace(config.run, shard=True))
    sharded = build_state(Setup(sharded_config, corpus, machine), 1)
    weight_step(sharded, Setup(sharded_config, corpus, machine), 0)
    # as from a file: optimizers keep the tensors that they are given
    sharded.load(copy.deepcopy(whole.to_checkpoint()))
    assert_equal(sharded.to_checkpoint(), whole.to_checkpoint())
    for _ in range(3):
        losses = (
            weight_step(sharded, Setup(sharded_config, corpus, machine), 0)["loss"],
            weight_step(whole, Setup(config, corpus, machine), 0)["loss"],
        )
        assert abs(losses[0] - losses[1]) < 1e-5
    saved = sharded.to_checkpoint()["memory"]
    assert saved.shape == (2, 6, 20, 8) and torch.equal(saved[:, machine.rank :: 2], sharded.memory)
    uneven = copy.deepcopy(sharded.to_checkpoint())
    uneven["memory"] = uneven["memory"][:, :5]
    whole.load(uneven)
    assert whole.memory is None and whole.arch_memory is None  # in both processes, so that they stay alike
    whole.load(sharded.to_checkpoint())
    assert_equal(sharded.to_checkpoint(), whole.to_checkpoint())


def check_messages(machine: Machine) -> None:
    """Means, the assertion on equal values, and a signal that one process alone has got."""
    mine = [torch.full((2, 3), float(machine.rank)), torch.tensor(10.0 * machine.rank)]
    average(machine, mine)
    assert torch.equal(mine[0], torch.full((2, 3), 0.5)) and float(mine[1]) == 5
    require_equal(machine, torch.tensor([1.0, -2.0]), "numbers")
    try:
        require_equal(machine, torch.tensor([1.0, -2.0 + 1e-6 * machine.rank]), "numbers")
    except RunFailed as error:
        assert "different numbers" in str(error)
    else:
        raise AssertionError("unequal values were taken for equal")
    stop = StopFlag()
    assert not stop_asked(machine, stop)
    if machine.rank == 1:
        stop.signal_number = 2
    assert stop_asked(machine, stop) and stop.signal_number == 2


def main() -> None:
    """All checks; process 0 writes what was done."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    machine = joined(CPU)
    assert (machine.rank, machine.world) == (dist.get_rank(), 2)
    with contextlib.redirect_stderr(io.StringIO()):
        done = [check.__name__ for check in (check_messages, check_steps, check_checkpoints) if check(machine) is None]
    if machine.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(done))
    dist.destroy_process_group()


if __name__ == "__main__":
    with without_teardown():
        main()
