"""What a process owes its surroundings: device and precision chosen once, signals, seeds, jobs side by side."""

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import multiprocessing

from nas.config import RunConfig
from nas.exit_codes import exit_codes
from nas.stop import StopFlag, Stopped
from supernet.errors import RunFailed, SettingError, UserError


@dataclass(frozen=True)
class Machine:
    """Device, compute dtype and determinism of this process."""

    device: torch.device
    dtype: torch.dtype

    def autocast(self) -> contextlib.AbstractContextManager:
        """Mixed precision where the dtype is not fp32."""
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32)

    def scaler(self) -> torch.amp.GradScaler:
        """A gradient scaler; it does nothing except in fp16."""
        return torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)


def choose_machine(run: RunConfig) -> Machine:
    """The device and dtype that `run` asks for; SettingError when the device is not there."""
    name = run.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()) or (kind == "cpu" and index):
        raise SettingError("run.device", f"expected auto, cpu, cuda or cuda:N, got {run.device!r}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise SettingError("run.device", f"{run.device} asks for a GPU and torch sees none; use cpu")
    if kind == "cuda" and index and int(index) >= torch.cuda.device_count():
        raise SettingError("run.device", f"{run.device}: torch sees {torch.cuda.device_count()} GPUs, counted from 0")
    torch.use_deterministic_algorithms(run.deterministic)
    precision = run.precision if run.precision != "auto" else ("bf16" if kind == "cuda" else "fp32")
    return Machine(torch.device(name), {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision])


def seed_from(*parts: object) -> int:
    """A 63-bit seed that depends on every part, such as (seed, "noise", step), and on nothing else."""
    digest = hashlib.blake2b(repr(parts).encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator_from(*parts: object) -> torch.Generator:
    """A CPU generator seeded by `seed_from`: noise is a function of (seed, step), so a resumed run needs no saved state."""
    return torch.Generator(device="cpu").manual_seed(seed_from(*parts))


def count_workers(run: RunConfig, jobs: int) -> int:
    """Processes to run `jobs` in: `run.workers`, or one a core on a CPU and one on a GPU."""
    on_gpu = run.device.startswith("cuda") or (run.device == "auto" and torch.cuda.is_available())
    wanted = run.workers or (1 if on_gpu else len(os.sched_getaffinity(0)))
    return max(1, min(wanted, jobs))


def run_jobs(function: Callable[..., None], jobs: Sequence[tuple[Any, ...]], workers: int, stop: StopFlag) -> None:
    """Call `function(*job, slot=..., stop=...)` for every job, `workers` at a time; results go to files.

    One worker runs here; several run in new processes that share the cores between them. Raises Stopped on a signal, and what
    the first failing job's exit code stands for.
    """
    if workers == 1:
        for job in jobs:
            function(*job, slot=0, stop=stop)
        return
    context = multiprocessing.get_context("spawn")
    threads = max(1, len(os.sched_getaffinity(0)) // workers)
    waiting, running = list(jobs), {}
    failed: int | None = None
    while running or (waiting and failed is None and stop.signal_number is None):
        for slot in range(workers):
            if waiting and slot not in running and failed is None and stop.signal_number is None:
                running[slot] = context.Process(target=_run_job, args=(function, waiting.pop(0), slot, threads))
                running[slot].start()
        for slot, process in list(running.items()):
            process.join(timeout=0.02)
            if process.exitcode is not None:
                del running[slot]
                failed = failed if failed is not None or process.exitcode == 0 else process.exitcode
        if (failed is not None or stop.signal_number is not None) and running:
            _stop_all(running.values())
    stop.check()
    if failed is not None:
        _raise_for(failed)


def _stop_all(processes: Any) -> None:
    for process in processes:
        if process.is_alive():
            process.terminate()  # SIGTERM: each finishes its step and writes a checkpoint
    time.sleep(0.05)


def _raise_for(exit_code: int) -> None:
    if exit_code in (130, 143):
        raise Stopped(exit_code - 128)
    if exit_code == 2:
        raise SilentUserError
    raise SilentRunFailed(exit_code)


class SilentUserError(UserError):
    """A worker has already printed the error line."""

    def __init__(self) -> None:
        super().__init__("")


class SilentRunFailed(RunFailed):
    """A worker has already printed the error line, or died without a word."""

    def __init__(self, exit_code: int) -> None:
        killed = f"a worker process was killed by signal {-exit_code}" if exit_code < 0 else ""
        super().__init__(killed)


def _run_job(function: Callable[..., None], job: tuple[Any, ...], slot: int, threads: int) -> None:
    torch.set_num_threads(threads)
    stop = StopFlag().install()
    with exit_codes():
        function(*job, slot=slot, stop=stop)
