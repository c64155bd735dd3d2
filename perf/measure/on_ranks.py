"""What runs on every rank: builds the variants of a group, warms them up, and measures them in shuffled turns.

A *turn* of a variant is a few samples in a row, from the initial weights; after every turn its weights are compared
with the oracle's. A *round* is one turn of every variant, in an order shuffled anew and equal on all ranks. All that
the harness itself has to say between ranks goes through a group of its own, between turns, never within them.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
import torch.distributed as dist

from conformance.ranks import RankContext
from conformance.subjects import Unsupported, resolve

from ..plan.axes import ALONE, known_trouble
from ..plan.cells import Cell, Group
from ..workloads import Workload, load, profile
from . import void
from .clock import Clock
from .links import sent_bytes
from .rows import OK, VOID
from .samples import Samples
from .trainer import Trainer, measured_group, quietly
from .verify import Expected, expected, in_full_precision

MARKS = 4  # of an iteration: start, forward done, backward done, step done
PHASES = ("forward", "backward", "step")
WARM_LEAST, WARM_MOST = 2, 8  # turns of warm-up
WARM_SHARE = 0.4  # of the time that there is: then warm-up ends, settled or not
OVERDRAFT = 1.5
SETTLED = 0.1  # warm-up is over when a turn's median is no more than this share below the one before


@dataclass(frozen=True)
class Order:
    """What the ranks of one group are to do."""

    group: Group
    specs: dict[str, str]  # what to resolve, by the subject's name
    rounds: int  # at least so many if seconds is None, else at most
    least_rounds: int
    seconds: float | None  # time for warm-up and rounds; None: as many rounds as asked
    block: int
    epoch: int
    seed: int = 0


Tell = Callable[[str], None]


def measure(ctx: RankContext, order: Order, tell: Tell, harness_group: Any = None) -> dict[str, Samples]:
    """Rank function: the samples of every variant by its series.

    ``tell`` notes what this rank is about to do. ``harness_group`` is a Gloo group for the harness's own messages; a
    new one unless given.
    """
    with quietly(), in_full_precision():
        return _Bench(ctx, order, tell, harness_group or dist.new_group(backend="gloo")).run()


class _Bench:
    def __init__(self, ctx: RankContext, order: Order, tell: Tell, harness_group: Any) -> None:
        self.ctx, self.order, self._note, self.harness_group = ctx, order, tell, harness_group
        cells = order.group.cells
        self.workload: Workload = load(cells[0].workload, cells[0].size)
        self.epochs = cells[0].unit == "epoch"
        self.length = order.epoch if self.epochs else order.block + 1  # a turn's first step is led in, not counted
        self.measured = measured_group(ctx, cells)
        self.samples = {cell.series: Samples() for cell in cells}
        self.trainers: dict[str, Trainer] = {}
        self.answers: dict[Any, Expected] = {}
        self.batches = [self._on_device(self.workload.batch(ctx.rank, at)) for at in range(self.length)]

    def run(self) -> dict[str, Samples]:
        for cell in self.order.group:
            self._build(cell)
        self._make_ready()
        gc.collect()
        gc.freeze()
        began = time.monotonic()
        self._warm_up(began)
        self._rounds(began)
        for cell in self.order.group:
            self._conclude(cell)
        return self.samples

    def tell(self, doing: str) -> None:
        """Note what this rank is about to do; a paced workload sleeps so much that it would else be taken for hung."""
        self.ctx.note_progress()
        self._note(doing)

    # -- building

    def _on_device(self, batch: Any) -> Any:
        return tuple(part.to(self.ctx.device) for part in batch)

    def _build(self, cell: Cell) -> None:
        """Build a variant; where any rank cannot, none goes on with it."""
        self.tell(f"{cell.series}: building")
        mine: tuple[str, str] | None = None
        try:
            subject = resolve(self.order.specs.get(cell.subject, "torch"))
            self.trainers[cell.series] = Trainer(self.ctx, cell, subject, self.workload, self.measured)
        except (Exception, Unsupported) as error:  # the latter is no Exception
            status = "not run" if isinstance(error, Unsupported) else "failed"
            mine = (status, f"{type(error).__name__}: {error}")
        reasons: list[tuple[str, str] | None] = [None] * self.ctx.world
        dist.all_gather_object(reasons, mine, group=self.harness_group)
        for rank, reason in enumerate(reasons):
            if reason is not None:
                self.trainers.pop(cell.series, None)
                self.samples[cell.series] = Samples(reason[0], f"rank {rank}, building: {reason[1]}")
                return

    def _make_ready(self) -> None:
        """The oracle's answers, and how much slower a straggler is."""
        for cell in self.order.group:
            if cell.series in self.trainers:
                self.tell(f"{cell.series}: the oracle")
                self._answer(cell)
        if self.workload.name == "paced":
            self._empty_step()
        first = self.order.group.cells[0]
        if first.skew == "straggler":
            delay_s = first.skew_fraction * self._agreed(self._alone_s(first.pace))
            for trainer in self.trainers.values():
                trainer.delay_s = delay_s if self.ctx.rank == self.ctx.world - 1 else 0.0
                self.samples[trainer.cell.series].facts["straggler_ns"] = round(delay_s * 1e9)

    def _empty_step(self) -> None:
        """What this machine adds to the waits: an iteration without them, all ranks at once, nobody communicating."""
        cell = self.order.group.cells[0]
        dist.barrier(group=self.harness_group)
        empty_ns = round(self._agreed(self._alone_s(0.0)) * 1e9)
        compute_ns = round(profile(cell.size).seconds * cell.pace * 1e9)
        for samples in self.samples.values():
            samples.facts |= {"empty_ns": empty_ns, "compute_ns": compute_ns}

    def _alone_s(self, pace: float) -> float:
        """An iteration's forward and backward without any library, the median of a few."""
        model = self.workload.model(pace).to(self.ctx.device)
        times = []
        for batch in self.batches:
            start = time.perf_counter()
            torch.autograd.backward(model(batch))
            self._settle()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    # -- turns

    def _warm_up(self, began: float) -> None:
        """Turns that do not count, until the medians of all ranks have settled."""
        # what may hang comes first, so that little is lost if it does
        order = sorted(self.trainers, key=lambda series: not known_trouble(self.trainers[series].cell.axes()))
        last = dict.fromkeys(order, inf)
        for turn in range(WARM_MOST):
            if turn and self._agreed(time.monotonic() - began) > WARM_SHARE * (self.order.seconds or inf):
                break
            for series in list(last):
                self.tell(f"{series}: warming up")
                clock = self._turn(self.trainers[series])
                every = 2 if self.epochs else MARKS
                walls = clock.spans(clock.wall, 0, every - 1, every)
                self.samples[series].warmup += walls
                median = self._agreed(statistics.median(clock.device_spans(every) or walls))
                if turn + 1 >= WARM_LEAST and median >= (1 - SETTLED) * last[series]:
                    last.pop(series)
                else:
                    last[series] = median
        for series in self.trainers:
            if self.trainers[series].cell.strategy == "after_join":
                self._join_once(self.trainers[series])

    def _join_once(self, trainer: Trainer) -> None:
        """One join context, entered and left, before what is measured."""
        self.tell(f"{trainer.cell.series}: a join before")
        with trainer.join():
            for batch in self.batches[:2]:
                trainer.iterate(batch, Clock(torch.device("cpu")))

    def _rounds(self, began: float) -> None:
        order = list(self.trainers)
        shuffle = random.Random(f"{self.order.seed} {self.order.group.name}")
        number = 0
        warm = time.monotonic()
        while order and self._another(number, warm - began, time.monotonic() - warm):
            shuffle.shuffle(order)
            for series in order:
                self.tell(f"{series}: measuring, round {number}")
                self._measured_turn(series, number)
            number += 1

    def _another(self, number: int, warming_s: float, passed_s: float) -> bool:
        """Whether there is time for one more round; rank 0 decides."""
        enough = number >= self.order.rounds
        if self.order.seconds is not None and number:
            next_s = passed_s / number
            # for the fewest rounds a group may take longer than its share, but not much: others want their turn
            bearable_s = self.order.seconds * (1.0 if number >= self.order.least_rounds else OVERDRAFT)
            enough = enough or warming_s + passed_s + next_s > bearable_s
        word = torch.tensor([0.0 if enough else 1.0])
        dist.broadcast(word, src=0, group=self.harness_group)
        return bool(word.item())

    def _measured_turn(self, series: str, number: int) -> None:
        trainer, samples = self.trainers[series], self.samples[series]
        self._watch_memory(series, before=True)
        for _ in range(2 if self.epochs else 1):
            before = sent_bytes() if trainer.cell.network else 0
            clock = self._turn(trainer)
            if trainer.cell.network:
                each = (sent_bytes() - before) // (1 if self.epochs else self.length)
                samples.facts["link_sent_bytes"] = each
            self._take(clock, samples, number)
            place = 0 if trainer.cell.hook in ALONE else self.ctx.rank
            gap, name = self._answer(trainer.cell).gap(trainer.bare, place)
            samples.worst = max(samples.worst, gap)
            samples.turns += 1
            why = void.by_result(gap, name, self.ctx.rank, number)
            if why and samples.status == OK:
                samples.status, samples.reason = VOID, why
        self._watch_memory(series, before=False)

    def _turn(self, trainer: Trainer) -> Clock:
        trainer.reset()
        clock = Clock(self.ctx.device)
        self._settle()
        gc.disable()
        try:
            dist.barrier(group=self.harness_group)
            if self.epochs:
                trainer.epoch(self.batches[: self._share(trainer.cell)], clock)
            else:
                trainer.steps(self.batches, clock)
            self._settle()
        finally:
            gc.enable()
        return clock

    def _share(self, cell: Cell) -> int:
        """How many batches this rank trains on, or offers to train on (a flag stops it)."""
        asked = cell.schedule if cell.strategy == "flag" else cell.trained
        return asked(self.length)[self.ctx.rank]

    def _settle(self) -> None:
        """Let the device come to rest: between turns only."""
        if self.ctx.device.type == "cuda":
            torch.cuda.synchronize()

    def _take(self, clock: Clock, samples: Samples, number: int) -> None:
        every, skip = (2, 0) if self.epochs else (MARKS, 1)
        samples.wall += clock.spans(clock.wall, 0, every - 1, every)[skip:]
        samples.cpu += clock.spans(clock.cpu, 0, every - 1, every)[skip:]
        if clock.events:
            samples.device += clock.device_spans(every)[skip:]
        samples.block += [number] * (len(samples.wall) - len(samples.block))
        if self.epochs:
            return
        for at, phase in enumerate(PHASES):
            samples.phases.setdefault(f"{phase}_wall", []).extend(clock.spans(clock.wall, at, at + 1, every)[skip:])
            samples.phases.setdefault(f"{phase}_cpu", []).extend(clock.spans(clock.cpu, at, at + 1, every)[skip:])

    # -- the oracle and the harness's own group

    def _answer(self, cell: Cell) -> Expected:
        """What one process has after a turn: by rank 0 for all ranks; by each for itself where nobody communicates."""
        alone = cell.hook in ALONE
        schedule = cell.trained(self.length)
        buffered = any(True for _ in self.trainers[cell.series].bare.buffers())
        key = (alone, schedule, buffered and (cell.joins, cell.follows_last))
        if key not in self.answers:
            if alone:
                mine = [schedule[self.ctx.rank]]
                self.answers[key] = expected(self.workload, cell, mine, [self.ctx.rank], self.ctx.device)
            else:
                self.answers[key] = self._from_rank_0(cell, schedule)
        return self.answers[key]

    def _from_rank_0(self, cell: Cell, schedule: tuple[int, ...]) -> Expected:
        answer: list[Expected | None] = [None]
        if self.ctx.rank == 0:
            everybody = range(self.ctx.world)
            answer = [expected(self.workload, cell, schedule, everybody, self.ctx.device).to(torch.device("cpu"))]
        dist.broadcast_object_list(answer, src=0, group=self.harness_group)
        assert answer[0] is not None
        return answer[0].to(self.ctx.device)

    def _agreed(self, mine: float) -> float:
        """The largest of all ranks' values."""
        value = torch.tensor([mine], dtype=torch.float64)
        dist.all_reduce(value, op=dist.ReduceOp.MAX, group=self.harness_group)
        return value.item()

    # -- facts

    def _watch_memory(self, series: str, before: bool) -> None:
        if self.ctx.device.type != "cuda":
            return
        samples = self.samples[series]
        if before:
            self.trainers[series].optimizer.zero_grad(set_to_none=True)  # gradients count with the step that makes them
            torch.cuda.reset_peak_memory_stats()
            samples.facts["_base"] = torch.cuda.memory_allocated()
        else:
            peak = torch.cuda.max_memory_allocated() - samples.facts.pop("_base")
            samples.facts["peak_bytes"] = max(peak, samples.facts.get("peak_bytes", 0))

    def _peak_bytes(self, trainer: Trainer) -> int:
        """Of one more step, after all that counts."""
        from .memory import peak_bytes

        trainer.optimizer.zero_grad(set_to_none=True)
        silent = Clock(torch.device("cpu"))
        return peak_bytes(lambda: trainer.iterate(self.batches[0], silent))

    def _conclude(self, cell: Cell) -> None:
        trainer, samples = self.trainers.get(cell.series), self.samples[cell.series]
        if trainer is None:
            return
        if cell.device == "cpu" and cell.unit == "step" and cell.optimizer == "adam":  # where its state matters
            self.tell(f"{cell.series}: its memory")
            samples.facts["peak_bytes"] = self._peak_bytes(trainer)
        parameters = list(trainer.bare.parameters())
        samples.facts |= {
            "parameters": len(parameters),
            "parameter_numel": sum(parameter.numel() for parameter in parameters),
            "parameter_bytes": sum(parameter.nbytes for parameter in parameters),
            "buffer_bytes": sum(buffer.nbytes for buffer in trainer.bare.buffers()),
            "optimizer_bytes": sum(tensor.nbytes for tensor in trainer.state()),
            "iterations": self._share(cell) if self.epochs else self.order.block,
        }
