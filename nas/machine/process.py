"""What a process owes its surroundings: seeds, versions, and jobs side by side."""

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import signal
import threading
from collections.abc import Callable, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import multiprocessing

from nas.config.sections import RunConfig
from nas.machine.device import Machine
from nas.machine.distributed import hand_out, processes
from nas.machine.exit_codes import outcome
from nas.machine.stop import SIGNALS, StopFlag, Stopped
from supernet.errors import RunFailed, UserError


def seed_from(*parts: object) -> int:
    """A 63-bit seed that depends on every part, such as (seed, "noise", step), and on nothing else."""
    digest = hashlib.blake2b(repr(parts).encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator_from(*parts: object) -> torch.Generator:
    """A CPU generator seeded by `seed_from`: noise is a function of (seed, step), so a resumed run needs no saved
    state."""
    return torch.Generator(device="cpu").manual_seed(seed_from(*parts))


def seed_dropout(machine: Machine, *parts: object) -> None:
    """Seed what draws without a generator, on the CPU and on GPUs; torch.manual_seed formats the call stack at each
    call.

    A process's rank sets its own rows apart from the others'; nothing does for the first, so that one alone draws the
    same.
    """
    seed = seed_from(*parts, *((machine.rank,) if machine.rank else ()))
    torch.default_generator.manual_seed(seed)
    if machine.device.type == "cuda":
        torch.cuda.manual_seed_all(seed)


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    packages = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    try:
        return {"par-search": importlib.metadata.version("par-search"), **packages}
    except importlib.metadata.PackageNotFoundError:  # run from a clone that is not installed
        return packages


def count_workers(run: RunConfig, jobs: int) -> int:
    """Processes to run `jobs` in: `run.workers`, or one a core on a CPU and one on a GPU; under torchrun all do one job
    together."""
    if processes() > 1:
        return 1
    on_gpu = run.device.startswith("cuda") or (run.device == "auto" and torch.cuda.is_available())
    wanted = run.workers or (1 if on_gpu else count_cores())
    return max(1, min(wanted, jobs))


def count_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_jobs(function: Callable[..., None], jobs: Sequence[tuple[Any, ...]], workers: int, stop: StopFlag) -> None:
    """Call `function(*job, slot=..., stop=...)` for every job, `workers` at a time; results go to files.

    One worker runs here, together with the other processes of torchrun where there are any; several are new processes
    that share the cores and take job after job. Raises Stopped on a signal, and what the first failing job's exit code
    stands for.
    """
    if workers == 1:
        with (
            stop.deferred() if processes() > 1 else contextlib.nullcontext()
        ):  # none may leave while others begin a job
            for job in jobs:
                if processes() > 1 and stop.signal_number is not None:
                    break
                hand_out(function, job)
                function(*job, slot=0, stop=stop)
        return
    threads = max(1, count_cores() // workers)
    waiting = list(jobs)
    failed: tuple[int, str] | None = None
    with stop.deferred():
        running = [_Worker(function, slot, threads) for slot in range(min(workers, len(jobs)))]
        while running:
            ending = failed is not None or stop.signal_number is not None
            for worker in list(running):
                if worker.idle and (ending or not waiting):
                    worker.finish()
                    running.remove(worker)
                elif worker.idle:
                    worker.give(waiting.pop(0))
                elif ending:
                    worker.stop()
                if not worker.idle and (ended := worker.outcome(patience=0.02)) and ended[0]:
                    failed = failed or ended
                    worker.finish()
                    running.remove(worker)
    if failed is not None:
        _raise_for(*failed)


def _raise_for(exit_code: int, message: str) -> None:
    if exit_code in (130, 143):
        raise Stopped(exit_code - 128)
    raise UserError(message) if exit_code == 2 else RunFailed(message)


class _Worker:
    """A process that does job after job, and the pipe over which it takes them and says how each ended."""

    def __init__(self, function: Callable[..., None], slot: int, threads: int):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(function, slot, threads, theirs))
        self._asked_to_stop = False
        self.idle = True
        # inherited: a new process takes signals when it can act on them
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        theirs.close()

    def give(self, job: tuple[Any, ...]) -> None:
        """Send a job."""
        self.idle = False
        with contextlib.suppress(BrokenPipeError):  # it has died, which its outcome tells
            self._pipe.send(job)

    def outcome(self, patience: float) -> tuple[int, str] | None:
        """(exit code, message) of the job once it has ended, after at most `patience` seconds; else None."""
        if not self._pipe.poll(patience):
            return None
        try:
            ended = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            return 3, self._death()
        self.idle = True
        return ended

    def stop(self) -> None:
        """Ask once; the process finishes its step and writes a checkpoint."""
        if not self._asked_to_stop and self._process.is_alive():
            self._asked_to_stop = True
            self._process.terminate()

    def finish(self) -> None:
        """Wait for the end of a process that has no job any more."""
        with contextlib.suppress(BrokenPipeError):
            self._pipe.send(None)
        self._process.join()
        self._pipe.close()

    def _death(self) -> str:
        self._process.join()
        code = self._process.exitcode
        died = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        hint = "; when memory is short, set run.workers to 1" if code == -signal.SIGKILL else ""
        return f"a worker process {died}; its last checkpoint is kept{hint}"


def _work(function: Callable[..., None], slot: int, threads: int, pipe: Connection) -> None:
    """Do the jobs that come over the pipe until one fails or None comes."""
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    stop = StopFlag().install()
    ended = (0, "")
    with contextlib.suppress(Stopped), stop.deferred():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        while ended[0] == 0 and (job := pipe.recv()) is not None:
            try:
                function(*job, slot=slot, stop=stop)
            except BaseException as error:
                ended = outcome(error)
            pipe.send(ended)


def _leave_with_parent() -> None:
    """End this process when its parent is gone, even by SIGKILL: whoever resumes the run must find no second writer."""
    connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(128 + signal.SIGKILL)
