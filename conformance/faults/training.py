"""What runs on the ranks of a cell, and how each of them leaves: it says how it ended, and must soon be gone."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..api import oracle
from ..fixtures import groups, models, overlapping
from ..ranks import RankContext
from ..ranks.recording import recorded
from ..subjects import Unsupported
from . import group, promises
from .cells import DDP, ENDING, LATE_NUMEL, LIVE, MIRRORED, OVERLAPPED, REGROUPING, SHARDED, ZERO, Cell
from .injecting import FAULT, STORE, Fault, read, write

LR = 0.125
LOOK_EVERY_S = 0.05
_WITHOUT_FAULT_S = 30.0  # a cell whose fault has not struck by then is given up
_STUCK, _HUNG, _GIVEN_UP = 77, 78, 79  # exit statuses of ranks that had to be ended
_TEXT = 4000


class Net(nn.Module):
    """Layers side by side, so that no gradient depends on a weight; beside them what the point in question needs."""

    def __init__(self, point: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.late = nn.Parameter(torch.zeros(LATE_NUMEL)) if point == "delayed gradients" else None
        self.unused = nn.Linear(2, 2) if point == "agreement on use" else None
        if point.startswith("buffers"):
            self.register_buffer("seen", torch.zeros(2))
        for index, parameter in enumerate(self.parameters()):
            nn.init.constant_(parameter, float(index))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.stack([(index + 1) * layer(x) for index, layer in enumerate(self.layers)]).sum(dim=0)
        late: Any = self.late
        return total if late is None else total + late.sum() * x


#: from which iteration on which ranks take part
Segments = tuple[tuple[int, tuple[int, ...]], ...]


class Counting(torch.optim.SGD):
    """Counts its steps by itself, and learns twice as much in every second one."""

    made = 0

    def step(self, closure: Any = None) -> Any:
        self.made += 1
        for settings in self.param_groups:
            settings["lr"] = LR * (1 + self.made % 2)
        return super().step(closure)


def optimizer_of(program: str) -> tuple[type[torch.optim.SGD], dict[str, Any]]:
    """Where ranks go on without another, there is a state to go on with; in a mirror, counts too."""
    kind = Counting if program == MIRRORED else torch.optim.SGD
    return kind, {"lr": LR, "momentum": 0.5 if program in REGROUPING else 0.0}


@cache
def expected(cell: Cell, segments: Segments = (), skipped: int = 0) -> list[list[float]]:
    """One process's parameters after the cell's schedule; ``skipped``: so many first iterations do not step."""
    model = Net(cell.point)
    kind, settings = optimizer_of(cell.program)
    optimizer = kind(model.parameters(), **settings)
    for iteration in range(max(cell.schedule)):
        there: Sequence[int] = range(cell.world)
        for first, ranks in segments:
            there = ranks if first <= iteration else there
        active = [rank for rank in oracle.active_ranks(cell.schedule, iteration) if rank in there]
        batches = [models.divisible(rank, iteration) for rank in active]
        gradients = oracle.averaged_gradients(model, batches, len(there))
        for name, parameter in model.named_parameters():
            parameter.grad = gradients.get(name)
        if iteration >= skipped:
            optimizer.step()
    return numbers(model)


def numbers(model: nn.Module) -> list[list[float]]:
    """The elements of the parameters, and of the buffers, which no forward changes."""
    return [tensor.detach().flatten().tolist() for tensor in (*model.parameters(), *model.buffers())]


# -- the life of a rank


def run_cell(ctx: RankContext, cell_id: str, folder_name: str) -> None:
    """Rank function: train with the fault of a cell, note how that ended, and leave as a script would."""
    cell, folder = Cell.of(cell_id), Path(folder_name)
    fault = Fault(cell, ctx.rank, folder)
    diary = Diary(cell, ctx.rank, folder, fault)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = train(ctx, cell, fault, diary)
    except Unsupported as error:
        report = {"unsupported": str(error)}
    except BaseException as error:
        report = _described(error)
        sys.last_value = error  # as of a script that ends with it
        sys.excepthook(type(error), error, error.__traceback__)
    diary.end(report)
    gc.collect()
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    with contextlib.suppress(Exception):
        dist.destroy_process_group()
    diary.gone()


def _described(error: BaseException) -> dict[str, Any]:
    text = "\n".join([str(error), *getattr(error, "__notes__", ())])
    return {"error": type(error).__name__, "text": text[:_TEXT], "trace": traceback.format_exc()[-_TEXT:]}


class Diary:
    """Notes how this rank ends, and sees to it that it does: a thread ends a rank that hangs."""

    def __init__(self, cell: Cell, rank: int, folder: Path, fault: Fault) -> None:
        self._cell, self._rank, self.folder, self._fault = cell, rank, folder, fault
        self._ended_at = 0.0
        self._begun = time.monotonic()
        self._starved: list[tuple[float, float]] = []
        self.note()
        threading.Thread(target=self._watch, name="conformance: watches the cell", daemon=True).start()

    def note(self) -> None:
        """Note how long this process has waited for a processor so far."""
        self._starved.append((time.monotonic(), starved_s()))

    def end(self, report: dict[str, Any]) -> None:
        """The rank's training is over."""
        self._ended_at = time.monotonic()
        at = (read(self.folder / FAULT) or {}).get("at", self._ended_at)
        before = max((starved for when, starved in self._starved if when <= at), default=0.0)
        facts = {"at": self._ended_at, "starved": starved_s() - before, "struck": self._fault.struck}
        write(self.folder / f"{self._rank}.json", {**report, **facts})

    def gone(self) -> None:
        """Leave at once: nothing that could still wait is left."""
        self._end_who_never_comes_back()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_EVERY_S)
            self.note()
            now = time.monotonic()
            struck = read(self.folder / FAULT)
            if self._ended_at:
                if now > self._ended_at + promises.LEAVING_S + self._late_s(self._ended_at):
                    self._end_by_force("stuck", _STUCK)
            elif struck is not None:
                limit = promises.limit_s(self._cell) + promises.GRACE_S
                if now > struck["at"] + limit + self._late_s(struck["at"]):
                    self._end_by_force("hung", _HUNG)
            elif now > self._begun + _WITHOUT_FAULT_S + self._late_s(self._begun):
                self._end_by_force("hung", _GIVEN_UP)

    def _late_s(self, since: float) -> float:
        """For how long this process has waited for a processor since then."""
        return self._starved[-1][1] - max((each for when, each in self._starved if when <= since), default=0.0)

    def _end_by_force(self, what: str, status: int) -> None:
        with open(self.folder / f"{self._rank}.{what}", "w", encoding="utf-8") as stacks:
            faulthandler.dump_traceback(stacks, all_threads=True)
        self._end_who_never_comes_back()
        os._exit(status)

    def _end_who_never_comes_back(self) -> None:
        """The last survivor to go ends the rank that was stopped for ever."""
        write(self.folder / f"{self._rank}.gone", True)
        struck = read(self.folder / FAULT)
        others = [rank for rank in range(self._cell.world) if rank not in self._cell.failing]
        if struck is None or self._cell.kind != "stopped for ever":
            return
        if all((self.folder / f"{rank}.gone").exists() for rank in others):
            with contextlib.suppress(ProcessLookupError):
                os.kill(struck["pid"], signal.SIGKILL)


def starved_s() -> float:
    """How long the main thread has been ready to run without a processor; 0 where the kernel does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/self/task/{os.getpid()}/schedstat").read_text().split()[1]) / 1e9
    return 0.0


# -- the group


@contextlib.contextmanager
def faulty_group(ctx: RankContext, cell: Cell, fault: Fault, folder: Path) -> Iterator[None]:
    """The default group, every collective of which the fault is asked about; those made of it later are whole."""
    store = _store_of_its_own(ctx, folder) if cell.kind == "store gone" else ctx.store
    limit = timedelta(seconds=promises.GROUP_TIMEOUT_S)
    group.current = fault
    with recorded("gloo", group.FaultyGroup):
        dist.init_process_group(
            "gloo", store=dist.PrefixStore("group", store), rank=ctx.rank, world_size=ctx.world, timeout=limit
        )
    yield


def _store_of_its_own(ctx: RankContext, folder: Path) -> Any:
    """A store in a process of its own, which the fault can end."""
    path = folder / STORE
    if ctx.rank == 0:
        fork_store(path)
        _wait_for(path)
    ctx.meet("store")
    known = ctx.store  # the ranks' own, on the host of rank 0
    while isinstance(known, dist.PrefixStore):
        known = known.underlying_store
    host = known.host if isinstance(known, dist.TCPStore) else "127.0.0.1"
    return dist.TCPStore(host, read(path)["port"], is_master=False, timeout=timedelta(seconds=20))


def fork_store(path: Path, port: int = 0) -> None:
    """Keep a store in a process of its own, which ends with this one; ``path`` will tell its port and that process."""
    parent = os.getpid()
    if os.fork() == 0:
        try:
            if sys.platform == "linux":
                ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # ends with its parent
            store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
            write(path, {"port": store.port, "pid": os.getpid()})
            while os.getppid() == parent:
                time.sleep(0.5)
        finally:
            os._exit(0)


def _wait_for(path: Path) -> None:
    end = time.monotonic() + 20
    while read(path) is None and time.monotonic() < end:
        time.sleep(0.005)


# -- training


def train(ctx: RankContext, cell: Cell, fault: Fault, diary: Diary) -> dict[str, Any]:
    """Set up and train what the cell says; this rank's parameters at the end, and how it went on without others."""
    with faulty_group(ctx, cell, fault, diary.folder):
        fault.enter("construction", 0)
        going_on = _GoingOn(ctx, cell) if cell.program in REGROUPING else None
        model, optimizer = _built(ctx, cell, fault)
        steps = 0
        while True:
            try:
                with _context(ctx, cell, model, optimizer):
                    for iteration in range(steps, cell.schedule[ctx.rank]):
                        diary.note()
                        fault.enter("forward", iteration)
                        _train_once(ctx, cell, fault, model, optimizer, iteration)
                        steps = iteration + 1
                    fault.enter("joined")
                    fault.at("at the end of the block")
                break
            except Exception as error:
                if going_on is None or not going_on.is_for(error):
                    raise
                steps = going_on.without_it(model, optimizer, steps)
        if cell.program == ZERO:
            fault.enter("consolidation")
            optimizer.consolidate_state_dict(0)
        fault.enter("exit")
        fault.at("at exit")
        return {"parameters": numbers(model.module), "segments": going_on.segments if going_on else []}


class _GoingOn:
    """How a rank goes on where another is lost. Unsupported by what does not offer that."""

    def __init__(self, ctx: RankContext, cell: Cell) -> None:
        self._regroup, self._lost = ctx.subject.regroup, ctx.subject.PeerFailed
        self._mirrored = cell.program == MIRRORED
        self.segments: list[tuple[int, tuple[int, ...], int]] = []  # the last: how many steps this rank had made

    def is_for(self, error: Exception) -> bool:
        return isinstance(error, self._lost)

    def without_it(self, model: Any, optimizer: Any, steps: int) -> int:
        """How many steps those that are left have made."""
        made = optimizer.mirror.steps if self._mirrored else steps
        left = self._regroup(model, optimizer, made)
        self.segments.append((left.steps, left.ranks, made))
        return int(left.steps)


def _context(ctx: RankContext, cell: Cell, model: Any, optimizer: Any) -> Any:
    """The context that the program has; torch's overlap hooks cannot be in one."""
    if cell.program == DDP or (cell.program in OVERLAPPED and ctx.subject.name == "torch"):
        return contextlib.nullcontext()
    follows = cell.program in SHARDED or cell.program in OVERLAPPED
    return ctx.subject.Join([model, optimizer] if follows else [model])


def _train_once(ctx: RankContext, cell: Cell, fault: Fault, model: Any, optimizer: Any, iteration: int) -> None:
    model.zero_grad(set_to_none=True)
    out = model(models.divisible(ctx.rank, iteration))
    fault.enter("backward")
    torch.autograd.backward(out.sum())
    fault.enter("step")
    if cell.program not in OVERLAPPED:
        optimizer.step()
    fault.enter("between")
    fault.at("between iterations")


def _built(ctx: RankContext, cell: Cell, fault: Fault) -> tuple[Any, Any]:
    """The model under the subject's DDP, and its optimizer."""
    net = Net(cell.point)
    pg = None
    if cell.program in OVERLAPPED and ctx.subject.name == "torch":
        groups.ensure_named()
        with recorded(groups.NAME, group.FaultyGroup):
            pg = groups.group_of(ctx)
    model = ctx.subject.DistributedDataParallel(
        net, bucket_cap_mb=overlapping.CAP_MIB, process_group=pg, **_options(cell, net)
    )
    net.layers[0].register_forward_hook(lambda *_: fault.at("forward hook"))
    weight: Any = net.layers[0].weight
    weight.register_hook(lambda _: fault.at("gradient hook"))
    if cell.point == "buffers after forward":
        _sync_buffers_after(ctx, model)
    if cell.point == "single parameter":
        model._register_accum_grad_hook()
    return model, _optimizer(ctx, cell, fault, model, pg)


def _options(cell: Cell, net: Net) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if cell.point == "agreement on use":
        options["find_unused_parameters"] = True
    if net.late is not None:
        options["delay_all_reduce_named_params"] = [("late", net.late)]
        options["param_to_hook_all_reduce"] = net.layers[0].weight
    return options


def _sync_buffers_after(ctx: RankContext, model: Any) -> None:
    def from_first(_state: Any, buffers: dict[str, torch.Tensor]) -> list[Any]:
        works: list[Any] = [dist.broadcast(each, src=0, async_op=True) for each in buffers.values()]
        return [work.get_future() for work in works]

    location = ctx.subject._BufferCommHookLocation.POST_FORWARD
    model._register_buffer_comm_hook(None, from_first, location)


def _optimizer(ctx: RankContext, cell: Cell, fault: Fault, model: Any, pg: Any) -> Any:
    hooks = ctx.subject.default_hooks

    def reduce(state: Any, bucket: Any) -> Any:
        fault.at("comm hook")
        return hooks.allreduce_hook(state, bucket)

    reduce.__annotations__.clear()  # as texts they would not be the classes that a registration asks for

    if cell.program in OVERLAPPED:
        if ctx.subject.name == "torch" and cell.role != LIVE:
            raise Unsupported("torch's overlap hooks have no place in a context")
        zero = ctx.subject.ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.SGD, lr=LR, overlap_with_ddp=True, process_group=pg
        )
        model.register_comm_hook(pg, _overlap_hook(ctx, cell, reduce, model, zero))
        return zero
    if cell.point == "comm hook":
        model.register_comm_hook(None, reduce)
    kind, settings = optimizer_of(cell.program)
    if cell.program not in SHARDED:
        return kind(model.parameters(), **settings)
    zero = ctx.subject.ZeroRedundancyOptimizer(model.parameters(), kind, **settings)
    if cell.program == MIRRORED:
        zero.keep_mirror()
    return zero


def _overlap_hook(ctx: RankContext, cell: Cell, reduce: Any, model: Any, zero: Any) -> Any:
    subject = ctx.subject
    if cell.program == "reduce-scatter":
        if subject.name == "torch":
            raise Unsupported("torch's overlap hooks have no reduce_scatter")
        return subject.hook_with_zero_step(subject.default_hooks.allreduce_hook, model, zero, reduce_scatter=True)
    made = subject.hook_with_zero_step if cell.program == "overlap" else subject.hook_with_zero_step_interleaved
    return made(reduce, model, zero)


def survivors(cell: Cell) -> list[int]:
    """The ranks that live on after the fault."""
    ending = cell.kind in ENDING or cell.kind == "host gone"
    return [rank for rank in range(cell.world) if not (ending and rank in cell.failing)]
