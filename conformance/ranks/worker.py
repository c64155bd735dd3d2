"""What runs inside a rank's process: take an order, set up the group, call the function, report, put away."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import os
import pickle
import resource
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..subjects import NotOffered, Unsupported, resolve
from . import backends, poison, recording
from . import collective_trace as trace
from .context import RankContext
from .control_socket import FREE, REPORTED, ControlSocket
from .files import Folder, write_whole
from .fork_server_client import STACKS_SIGNAL
from .order import Order, import_main
from .origin import Sides, fell_over
from .outcomes import Caught, Finished, Outcome, Raised, judging
from .placing import moved, placed_on
from .restore import everything_restored


def serve(rank: int, folder: str, fd: int) -> None:
    """The life of a rank: one order after the other, until the driver ends it."""
    _open_files(Folder(Path(folder)), rank)
    torch.set_num_threads(1)
    control_socket = ControlSocket(fd, trace.look)
    while True:
        _, _, path = control_socket.next().partition(" ")  # do <folder>
        run = Folder(Path(path))
        with everything_restored(), contextlib.ExitStack() as stack:
            order: Order = pickle.loads(run.order.read_bytes())
            outcome = _outcome(order, rank, run, stack)
            sys.stdout.flush()
            write_whole(run.outcome(rank), _pickled(outcome))
            control_socket.say(REPORTED)
            control_socket.next()  # put away: every rank has an outcome, nobody needs this one's sockets any more
            del outcome
            gc.collect()  # models in cycles: before their groups go, and not within the next run
            if dist.is_initialized():
                dist.destroy_process_group()
        control_socket.say(FREE)


def _open_files(folder: Folder, rank: int) -> None:
    """Send everything this process says to its file, and have its stacks written when they are asked for."""
    words = os.open(folder.words(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(words, standard)
    os.close(words)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # no core of gigabytes
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    stacks = os.open(folder.stacks(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    faulthandler.enable(stacks)
    faulthandler.register(STACKS_SIGNAL, stacks, all_threads=True)


def _outcome(order: Order, rank: int, run: Folder, stack: contextlib.ExitStack) -> Outcome:
    """Do what is ordered. ``sys.exit`` ends the process, as it would anywhere else."""
    sides = Sides()
    try:
        _take_surroundings(order)
        if order.trace:
            trace.begin(run.trace(rank))
            stack.callback(trace.end)
        if order.trace or order.poison:
            stack.enter_context(recording.recorded(backends.load(order.backend)))
        if order.poison:
            stack.enter_context(poison.poisoning())
        context, function, args, sides = _prepared(order, order.first + rank, run.progress(rank))
        stack.enter_context(judging(context.subject))
        if order.placing:
            stack.enter_context(placed_on(context.device))
            args = moved(args, context.device)
        value = function(context, *args)
        poison.ensure_untouched()
        trace.returned()
        return Finished(value)
    except SystemExit as leaving:
        _exit(leaving.code)
        raise
    except BaseException as error:
        return _raised(error, sides)


def _prepared(order: Order, rank: int, progress: Path) -> tuple[RankContext, Any, tuple[Any, ...], Sides]:
    limit = timedelta(seconds=order.group_timeout_s)
    client = dist.TCPStore(order.host, order.port, is_master=False, timeout=limit)
    store = dist.PrefixStore(f"{order.prefix}run{order.number}", client)
    function, args, subject = pickle.loads(order.payload)
    name = backends.load(order.backend)
    device = backends.device_of(order.backend, rank if order.device is None else order.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    os.environ.update(backends.surroundings_of(order.backend, rank))
    if order.init:
        dist.init_process_group(
            name, store=dist.PrefixStore("group", store), rank=rank, world_size=order.world, timeout=limit
        )
    spec = subject if isinstance(subject, str) else ""
    subject = resolve(spec) if spec else subject
    context = RankContext(
        rank, order.world, subject, order.backend, device, dist.PrefixStore("check", store), order.one_machine, progress
    )
    return context, function, args, Sides.of(function, subject, spec)


def _take_surroundings(order: Order) -> None:
    """The driver's environment, paths and working directory, and what the run asked for on top."""
    os.environ.clear()
    os.environ.update(order.environ)
    sys.path[:] = order.sys_path
    os.chdir(order.cwd)
    import_main(order.main)
    dist.set_debug_level_from_env()  # torch read the variable when it was loaded, before this run said anything


def _exit(code: Any) -> None:
    """End the process as the interpreter would after ``sys.exit(code)``."""
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit((code or 0) & 0xFF)


def _raised(error: BaseException, sides: Sides) -> Raised:
    error = (sides.subject and sides.subject.excuse(error)) or error
    kinds = tuple(kind.__name__ for kind in type(error).__mro__)
    try:
        text = str(error)
    except Exception as broken:
        text = f"(its text cannot be had: {type(broken).__name__})"
    ours = fell_over(error, sides, on_rank=True)
    unsupported = isinstance(error, Unsupported) and not isinstance(error, NotOffered)
    return Raised(Caught(kinds, text), traceback.format_exc(), unsupported, ours)


class _ToDriver(pickle.Pickler):
    """Tensors travel on the CPU: the driver has no device of its own, and compares with what it has computed there."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device.type not in ("cpu", "meta"):
            return value.detach().cpu().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return NotImplemented


def _pickled(outcome: Outcome) -> bytes:
    """The outcome as bytes; if it cannot be sent or read back, one that says so."""
    try:
        file = io.BytesIO()
        _ToDriver(file).dump(outcome)
        whole = file.getvalue()
        pickle.loads(whole)
    except Exception as error:
        what = type(outcome.value).__name__ if isinstance(outcome, Finished) else "error"
        text = (
            f"the rank's function returned, but its result (a {what}) cannot be sent to the driver: "
            f"{type(error).__name__}: {error}. Usual cause: it holds a module, a group, a lock or a local class. "
            "Return plain data: numbers, strings, tensors, lists, dicts."
        )
        kinds = ("Unpicklable", "TypeError", "Exception")
        return pickle.dumps(Raised(Caught(kinds, text), traceback.format_exc(), fell_over=True))
    return whole
