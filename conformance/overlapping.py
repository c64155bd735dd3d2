"""What the checks of the overlapped step share: a group that its hooks accept, pairs of DDP and ZeRO, one process."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from . import models, oracle
from .hooked import gap
from .ranks import Event, RankContext, ledger, recording
from .ranks.backends import load
from .subjects import Unsupported
from .training import Numbers, ddp, gradients, numbers, parameters

#: Gloo under another name. The documents refuse Gloo by its name; everything that they promise is promised elsewhere.
NAME = "gloo_unnamed"

#: How many iterations may leave the parameters unchanged, by ``static_graph`` (HOOK-011, HOOK-012).
WARM_UP = {False: 2, True: 3}
ITERATIONS = 5

#: Factors are powers of two, so that a few steps on integers are exact.
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.25}),
    "momentum": (torch.optim.SGD, {"lr": 0.25, "momentum": 0.5}),
    "decay": (torch.optim.SGD, {"lr": 0.25, "momentum": 0.5, "weight_decay": 0.25}),
    "adam": (torch.optim.Adam, {"lr": 0.125}),
}

#: About fifty bytes: more buckets than ranks, each of a layer or less.
CAP_MIB = 5e-5

Hook = Callable[[Any, Any], Any]


# -- groups


def group_of(ctx: RankContext, members: Sequence[int] | None = None) -> Any:
    """A new group of these ranks (by default all) that the hooks need not refuse; recorded where the run is."""
    ranks = list(range(ctx.world)) if members is None else list(members)
    if load(ctx.backend) != "gloo":
        return dist.new_group(ranks)
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _gloo, devices=dist.Backend.backend_capability["gloo"])
    watching = recording.recorded(NAME) if ledger.current() is not None else contextlib.nullcontext()
    with watching:
        return dist.new_group(ranks, backend=NAME)


def _gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    return dist.ProcessGroupGloo(store, rank, size, timeout)  # type: ignore[call-arg]


# -- hooks to extend


def new_future(value: torch.Tensor) -> torch.futures.Future[Any]:
    """A future for a value on this one's device; nobody has completed it yet."""
    devices: list[Any] | None = None if value.device.type == "cpu" else [value.device]
    return torch.futures.Future(devices=devices)


def completed(value: torch.Tensor) -> torch.futures.Future[Any]:
    """A future that holds the value already."""
    future = new_future(value)
    future.set_result(value)
    return future


def settled(group: Any, bucket: Any) -> Any:
    """Averages a bucket before it returns: what follows then depends on nothing but the order of the calls."""
    buffer = bucket.buffer()
    dist.all_reduce(buffer, group=group)
    return completed(buffer.div_(dist.get_world_size(group)))


# -- pairs


@dataclass(frozen=True)
class Overlap:
    """One way to overlap: which hook, whose shards, which optimizer, which model under which DDP."""

    interleaved: bool = False
    shard: bool = False
    optimizer: str = "momentum"
    model: Callable[[], nn.Module] = models.Sum
    hook: Hook | None = None  # the one to extend; the library's all-reduce unless given
    ddp: Mapping[str, Any] = field(default_factory=dict)

    @property
    def warm_up(self) -> int:
        return WARM_UP[bool(self.ddp.get("static_graph", False))]


@dataclass
class Pair:
    """A model under DDP with an optimizer that its hook steps, and this rank's place in their group."""

    ddp: Any
    zero: Any
    group: Any
    place: int

    @property
    def model(self) -> nn.Module:
        found: nn.Module = self.ddp.module
        return found

    def batch(self, number: int) -> torch.Tensor:
        """This rank's data of an iteration, where the model is."""
        return batch(self.place, number).to(next(self.model.parameters()).device)


def optimizer_of(ctx: RankContext, params: Iterable[Any], name: str, group: Any, **options: Any) -> Any:
    """The subject's ZeroRedundancyOptimizer; overlapping unless told otherwise."""
    kind, settings = OPTIMIZERS[name]
    options = {"overlap_with_ddp": True, "process_group": group, **settings, **options}
    return ctx.subject.ZeroRedundancyOptimizer(params, kind, **options)


def factory_of(ctx: RankContext, interleaved: bool) -> Callable[..., Hook]:
    found: Callable[..., Hook]
    found = ctx.subject.hook_with_zero_step_interleaved if interleaved else ctx.subject.hook_with_zero_step
    return found


def pair_of(ctx: RankContext, how: Overlap, group: Any = None, outer: Callable[[Hook], Hook] | None = None) -> Pair:
    """DDP and ZeRO over a new model, the hook registered; ``outer`` may wrap what the factory made."""
    group = group_of(ctx) if group is None else group
    model = ddp(ctx, how.model().to(ctx.device), **{"bucket_cap_mb": CAP_MIB, "process_group": group, **how.ddp})
    zero = optimizer_of(ctx, model.parameters(), how.optimizer, group)
    made = factory_of(ctx, how.interleaved)(
        how.hook or ctx.subject.default_hooks.allreduce_hook, model, zero, how.shard
    )
    model.register_comm_hook(group, outer(made) if outer else made)
    return Pair(model, zero, group, dist.get_rank(group))


# -- training


@dataclass(frozen=True)
class Seen:
    """What one rank holds when a backward returns."""

    gradients: Numbers
    parameters: Numbers


def batch(place: int, iteration: int) -> torch.Tensor:
    """One row of small integers, another one on every rank and in every iteration."""
    return models.integers(1, 4, seed=1000 * place + iteration)


def loss(output: torch.Tensor) -> torch.Tensor:
    """Twelve times the sum: gradients of a sum of layers are then divisible by 1, 2, 3 and 4 ranks."""
    return 12 * output.sum()


def squares(output: torch.Tensor) -> torch.Tensor:
    """A loss whose gradients depend on the weights: whoever computes with old ones is found out."""
    return (output * output).sum() / 64


def small(layers: int = 4) -> nn.Module:
    """A stack of layers whose gradients depend on the weights of all the others."""
    model = models.chain(layers)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.div_(4)
    return model


def iteration(pair: Pair, number: int, measure: Callable[[torch.Tensor], torch.Tensor] = loss) -> Seen:
    """One forward and backward on this rank's data, from fresh gradients; nobody calls ``step``."""
    pair.ddp.zero_grad(set_to_none=True)
    measure(pair.ddp(pair.batch(number))).backward()  # type: ignore[no-untyped-call]
    return Seen(gradients(pair.model), parameters(pair.model))


def iterations(
    pair: Pair, count: int = ITERATIONS, measure: Callable[[torch.Tensor], torch.Tensor] = loss
) -> list[Seen]:
    return [iteration(pair, number, measure) for number in range(count)]


def warmed(ctx: RankContext, how: Overlap, group: Any = None, outer: Callable[[Hook], Hook] | None = None) -> Pair:
    """A pair that has gone through the iterations that need not step, and through one that must."""
    pair = pair_of(ctx, how, group, outer)
    iterations(pair, how.warm_up + 1)
    return pair


# -- one process


class Alone:
    """One process that follows what the ranks show: it steps in every iteration but those in which they may wait."""

    def __init__(self, how: Overlap, world: int, measure: Callable[[torch.Tensor], torch.Tensor] = loss) -> None:
        self.model = how.model()
        kind, settings = OPTIMIZERS[how.optimizer]
        self.optimizer = kind(self.model.parameters(), **settings)
        self.world, self.measure, self.warm_up = world, measure, how.warm_up
        self.updates: list[bool] = []  # by iteration

    def follow(self, seen: Sequence[Seen], micro: int = 1, tolerance: float = 0.0) -> None:
        """One more iteration: gradients are the average, parameters those of the ordinary optimizer, on every rank."""
        number = len(self.updates)
        before = parameters(self.model)
        average = self._average(number, micro)
        expected = numbers((name, average.get(name)) for name in before)  # None where nobody used it
        for rank, mine in enumerate(seen):
            what = f"gradients of rank {rank}, iteration {number}"
            _assert_near(mine.gradients, expected, tolerance, what)
        waits = number < self.warm_up and not any(self.updates) and all(one.parameters == before for one in seen)
        self.updates.append(not waits)
        if waits:
            return
        self.step(average)
        for rank, mine in enumerate(seen):
            what = f"parameters of rank {rank}, iteration {number}"
            _assert_near(mine.parameters, parameters(self.model), tolerance, what)

    def step(self, average: Mapping[str, torch.Tensor]) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.grad = average.get(name)
        self.optimizer.step()

    def _average(self, number: int, micro: int) -> dict[str, torch.Tensor]:
        batches = [batch(rank, number * micro + part) for rank in range(self.world) for part in range(micro)]
        return oracle.averaged_gradients(self.model, batches, self.world, self.measure)


def _assert_near(ours: Numbers, theirs: Numbers, tolerance: float, what: str) -> None:
    if tolerance:
        far = gap([ours], [theirs])
        assert far <= tolerance, f"{what}: {far:g} apart relative to the largest number, {tolerance:g} is allowed"
        return
    for name, expected in theirs.items():
        assert ours.get(name) == expected, f"{what}: {name} is {ours.get(name)}, one process has {expected}"
    assert len(ours) == len(theirs), f"{what}: {sorted(ours)} instead of {sorted(theirs)}"


def assert_as_alone(
    runs: Sequence[Sequence[Seen]],
    how: Overlap,
    measure: Callable[[torch.Tensor], torch.Tensor] = loss,
    tolerance: float = 0.0,
) -> list[bool]:
    """Every rank is where one process is, after every iteration; says which iterations updated."""
    alone = Alone(how, len(runs), measure)
    for seen in zip(*runs, strict=True):
        alone.follow(seen, tolerance=tolerance)
    return alone.updates


# -- owners, steps and messages


@contextlib.contextmanager
def heard() -> Iterator[list[str]]:
    """All warnings given meanwhile, through ``logging`` or ``warnings``."""
    said: list[str] = []
    make = logging.getLogRecordFactory()

    def note(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        if record.levelno >= logging.WARNING:
            said.append(record.getMessage())
        return record

    logging.setLogRecordFactory(note)
    try:
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            yield said
        said += [str(one.message) for one in given]
    finally:
        logging.setLogRecordFactory(make)


def stateful(pair: Pair) -> set[str]:
    """The parameters whose optimizer state this rank keeps (of an optimizer that keeps one)."""
    optim = getattr(pair.zero, "optim", None)
    if optim is None:
        raise Unsupported("the optimizer has no attribute optim, so nobody can see who keeps whose state")
    keys = {id(key) for key, state in optim.state.items() if state}
    return {name for name, parameter in pair.model.named_parameters() if id(parameter) in keys}


def names_in(pair: Pair, bucket: Any) -> tuple[str, ...]:
    """The names of a bucket's parameters, in its order."""
    names = {id(parameter): name for name, parameter in pair.model.named_parameters()}
    return tuple(names[id(parameter)] for parameter in bucket.parameters())


def published(events: Iterable[Event]) -> list[Event]:
    """Those of an iteration's collectives that carry parameters: floats that are sent instead of reduced."""
    return [event for event in events if event.dtype.startswith("float") and not event.op.startswith("all_reduce")]


def merged(sources: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """(source, elements) with neighbours of one source put together: in how many messages it sends is its business."""
    found: list[tuple[int, int]] = []
    for source, elements in sources:
        if found and found[-1][0] == source:
            found[-1] = (source, found[-1][1] + elements)
        else:
            found.append((source, elements))
    return found
