"""Several processes on one run: `torchrun --nproc-per-node K search.py ...`.

Process 0 runs the command, alone writes and prints, and hands out its jobs (searches and trainings). The others take
part in each job with rows of their own of every batch; what they would write goes into a folder that is thrown away.
Everything random depends on (seed, step), so all processes choose the same candidates. Gradients are averaged by
torch.distributed's all-reduce, in one message a step that holds those of the candidates that ran and no others:
DistributedDataParallel either needs all parameters in every step or searches the graph for those without a part and
sends them all the same (benchmarks/scaling.py measures both).
"""

import contextlib
import dataclasses
import datetime
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nas.machine.device import Machine
from nas.machine.stop import StopFlag, Stopped
from supernet.errors import RunFailed, UserError

CPU = torch.device("cpu")
# of processes that wait while process 0 derives, compares and draws; a dead one is noticed at once
PATIENCE = datetime.timedelta(days=7)

_waiting: list[dist.ProcessGroup] = []  # the group of the messages between jobs, once there is one


def work_together(lead: Callable[[], None], stop: StopFlag) -> None:
    """Call `lead` in process 0 and take part in its jobs in the others; all end when it has ended."""
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    with _while_connected():
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        _waiting.append(dist.new_group(backend="gloo", timeout=PATIENCE))
    if dist.get_rank() == 0:
        lead()
        _send(None)
    else:
        _follow(stop)
    dist.destroy_process_group()


def processes() -> int:
    """How many processes work on this run together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def joined(machine: Machine) -> Machine:
    """The machine as one of several processes, for jobs that all of them do together."""
    if processes() == 1:
        return machine
    return dataclasses.replace(machine, rank=dist.get_rank(), world=processes())


def hand_out(function: Callable[..., None], job: tuple[Any, ...]) -> None:
    """Let the other processes call `function(*job, slot=..., stop=...)` as well, each path in the job an empty folder
    of its own."""
    if processes() > 1:
        _send((function, job))


def average(machine: Machine, tensors: list[Tensor]) -> None:
    """Replace each tensor by its mean over the processes, all in one message; all have the first one's dtype and
    device."""
    if machine.world == 1:
        return
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
    with _while_connected():
        dist.all_reduce(flat)
    flat /= machine.world
    for tensor, mean in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.detach().copy_(mean.view_as(tensor))


def is_shared(value: Any) -> bool:
    """Whether a value is a tensor of which every process holds a part (a DTensor)."""
    return hasattr(value, "full_tensor")


def average_gradients(machine: Machine, parameters: list[nn.Parameter], loss: Tensor) -> None:
    """Average the parameters' gradients, and the loss; sharded ones FSDP has averaged already."""
    average(machine, [loss, *(parameter.grad for parameter in parameters if not is_shared(parameter.grad))])


def require_equal(machine: Machine, values: Tensor, name: str) -> None:
    """RunFailed unless all processes hold the same values, to the bit."""
    if machine.world == 1:
        return
    largest = torch.cat((values.detach(), -values.detach()))
    with _while_connected():
        dist.all_reduce(largest, dist.ReduceOp.MAX)
    if not torch.equal(largest, torch.cat((values.detach(), -values.detach()))):
        raise RunFailed(
            f"the processes hold different {name}; the last checkpoint is kept; go on with --run.resume true"
        )


def stop_asked(machine: Machine, stop: StopFlag) -> bool:
    """Whether any process has got a signal: all leave after the same step."""
    if machine.world == 1:
        return stop.signal_number is not None
    number = torch.tensor(stop.signal_number or 0)
    with _while_connected():
        dist.all_reduce(number, dist.ReduceOp.MAX)
    if number and stop.signal_number is None:
        stop.signal_number = int(number)
    return bool(number)


def share_files(machine: Machine, folder: Path, names: Iterable[str]) -> None:
    """Give the other processes process 0's files of these names, where there are any."""
    if machine.world == 1:
        return
    if machine.rank == 0:
        _send({name: (folder / name).read_bytes() for name in names if (folder / name).exists()})
        return
    for name in names:
        (folder / name).unlink(missing_ok=True)
    for name, content in _receive().items():
        (folder / name).write_bytes(content)


def _follow(stop: StopFlag) -> None:
    """Do the jobs that process 0 hands out until there are no more, or it has gone."""
    with stop.deferred():  # process 0 decides when to leave
        while (message := _next_message()) is not None:
            try:
                _take_part(*message, stop)
            except UserError as error:  # such as a file that is on process 0's machine alone
                raise UserError(f"process {dist.get_rank()}: {error}") from None
            except (RunFailed, Stopped) as error:  # process 0 fails of the same and says so
                raise SystemExit(getattr(error, "exit_code", 3)) from None


def _take_part(function: Callable[..., None], job: tuple[Any, ...], stop: StopFlag) -> None:
    with (
        tempfile.TemporaryDirectory() as scratch,
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stderr(nowhere),
    ):
        function(*(Path(scratch) if isinstance(value, Path) else value for value in job), slot=0, stop=stop)


def _next_message() -> Any:
    try:
        return _receive()
    except RunFailed:
        return None


def _send(message: Any) -> None:
    with _while_connected():
        dist.broadcast_object_list([message], src=0, group=_waiting[-1], device=CPU)


def _receive() -> Any:
    box = [None]
    with _while_connected():
        dist.broadcast_object_list(box, src=0, group=_waiting[-1], device=CPU)
    return box[0]


@contextlib.contextmanager
def _while_connected() -> Iterator[None]:
    """RunFailed in place of what the backends raise when another process has gone."""
    try:
        yield
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise RunFailed(
            "another process of this job has ended or cannot be reached; the last checkpoint is kept: start the job "
            "again with "
            f"--run.resume true, with any number of processes ({reason})"
        ) from None
