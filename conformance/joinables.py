"""Joinables as users write them, in several shapes, built on the base classes of the implementation being judged.

A shape is a function that is given the rank's context and returns a new joinable; all of them log what happens to
them, as ``"<name> step"``, ``"<name> main"`` and ``"<name> post <is_last_joiner>"``. ``log`` may be shared by several
joinables to see the order among them.
"""

# The base classes are those of the judged implementation, known only at run time; mypy cannot follow that.
# mypy: disable-error-code="valid-type,misc"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .ranks import RankContext

# ------------------------------------------------------------------------------------------------------------- groups


def upper_ranks(world: int) -> list[int]:
    """All global ranks but 0: members of a group in which no member's group rank equals its global rank."""
    return list(range(1, world))


def total(handle: Any) -> float:
    """The number that a notification's handle yields, after waiting for it."""
    handle.wait()
    return float(handle.get_future().wait()[0].item())


# ------------------------------------------------------------------------------------------------------------- shapes


def housed(ctx: RankContext) -> Any:
    """A base class that lives on a given device and group; leaves ``join_hook`` to the shape."""
    base: Any = ctx.subject.Joinable

    class Housed(base):
        def __init__(self, name: str, log: list[str] | None = None, group: Any = None, device: Any = None) -> None:
            super().__init__()
            self.name = name
            self.log: list[str] = [] if log is None else log
            self.group = ctx.group if group is None else group
            self.device = ctx.device if device is None else device

        @property
        def join_device(self) -> Any:
            return self.device

        @property
        def join_process_group(self) -> Any:
            return self.group

        def notify(self) -> Any:
            return ctx.subject.Join.notify_join_context(self)

    return Housed


def hook_of(ctx: RankContext, main: Callable[[], object], post: Callable[[bool], object]) -> Any:
    """A join hook that calls ``main`` and ``post``."""
    base: Any = ctx.subject.JoinHook

    class Calling(base):
        def main_hook(self) -> None:
            main()

        def post_hook(self, is_last_joiner: bool) -> None:
            post(is_last_joiner)

    return Calling()


def recorder(ctx: RankContext, name: str = "a", log: list[str] | None = None, **options: Any) -> Any:
    """Communicates nothing itself; keeps every keyword it was handed and every hook it made.

    ``main`` and ``post`` in ``options`` are called inside the hooks (with the joinable; with the joinable and the
    flag), so that a check can let a hook do something of its own, such as failing.
    """
    base = housed(ctx)
    main = options.pop("main", None)
    post = options.pop("post", None)

    class Recorder(base):
        def __init__(self) -> None:
            super().__init__(name, log, **options)
            self.heard: list[dict[str, Any]] = []
            self.hooks: list[Any] = []
            self.called: list[Any] = []

        def join_hook(self, **kwargs: Any) -> Any:
            self.heard.append(dict(kwargs))
            kwargs.clear()  # must not be felt by the next joinable
            hook = hook_of(ctx, lambda: self.on_main(hook), lambda last: self.on_post(hook, last))
            self.hooks.append(hook)
            return hook

        def on_main(self, hook: Any) -> None:
            self.called.append(hook)
            self.log.append(f"{self.name} main")
            if main is not None:
                main(self)

        def on_post(self, hook: Any, is_last_joiner: bool) -> None:
            self.called.append(hook)
            self.log.append(f"{self.name} post {is_last_joiner}")
            if post is not None:
                post(self, is_last_joiner)

        def step(self) -> Any:
            handle = self.notify()
            self.log.append(f"{self.name} step")
            return handle

    return Recorder()


def adder(ctx: RankContext, name: str = "adder", log: list[str] | None = None, **options: Any) -> Any:
    """Adds up what all ranks contribute, one all-reduce a step.

    A shadowing rank contributes zero and does not look at the sum; it learns the total in the post hook, which elects
    one of the last joiners and broadcasts its total.
    """
    base = housed(ctx)

    class Adder(base):
        def __init__(self) -> None:
            super().__init__(name, log, **options)
            self.total = torch.zeros(3, device=self.device)

        def join_hook(self, **kwargs: Any) -> Any:
            del kwargs
            return hook_of(ctx, self.shadow, self.settle)

        def step(self, value: float) -> None:
            self.notify()
            self.log.append(f"{self.name} step")
            self.total += self.reduced(value)

        def reduced(self, value: float) -> torch.Tensor:
            whole = torch.full((3,), float(value), device=self.device)
            dist.all_reduce(whole, group=self.group)
            return whole

        def shadow(self) -> None:
            self.log.append(f"{self.name} main")
            self.reduced(0)

        def settle(self, is_last_joiner: bool) -> None:
            self.log.append(f"{self.name} post {is_last_joiner}")
            candidate = torch.tensor([dist.get_rank(self.group) if is_last_joiner else -1], device=self.device)
            dist.all_reduce(candidate, op=dist.ReduceOp.MAX, group=self.group)
            source = dist.get_global_rank(self.group, int(candidate.item()))
            dist.broadcast(self.total, src=source, group=self.group)

    return Adder()


def walker(ctx: RankContext, name: str = "walker", log: list[str] | None = None, **options: Any) -> Any:
    """A replicated value that every rank moves by the same all-reduced amount, live and shadowing alike.

    Its main hook does what its step does with a neutral contribution, minus the notification, as data-parallel
    training does. With ``shadow_by_step`` it is lazier: the main hook calls the step, notification included.
    """
    base = housed(ctx)
    shadow_by_step = options.pop("shadow_by_step", False)

    class Walker(base):
        def __init__(self) -> None:
            super().__init__(name, log, **options)
            self.places: list[float] = [0.0]

        def join_hook(self, **kwargs: Any) -> Any:
            del kwargs
            shadow = (lambda: self.step(0)) if shadow_by_step else (lambda: self.move(0, "main"))
            return hook_of(ctx, shadow, lambda last: self.log.append(f"{self.name} post {last}"))

        def step(self, value: float) -> None:
            self.notify()
            self.move(value, "step")

        def move(self, value: float, role: str) -> None:
            self.log.append(f"{self.name} {role}")
            by = torch.tensor([value, 1.0], device=self.device)
            dist.all_reduce(by, group=self.group)
            self.places.append(self.places[-1] * 0.5 + by[0].item())

    return Walker()


def collector(ctx: RankContext, name: str = "collector", log: list[str] | None = None, **options: Any) -> Any:
    """Gathers every rank's item of each step; a shadowing rank gives ``MISSING`` and still receives."""
    base = housed(ctx)

    class Collector(base):
        MISSING = -1.0

        def __init__(self) -> None:
            super().__init__(name, log, **options)
            self.rows: list[list[float]] = []

        def join_hook(self, **kwargs: Any) -> Any:
            del kwargs
            return hook_of(
                ctx, lambda: self.gather(self.MISSING, "main"), lambda last: self.log.append(f"{self.name} post {last}")
            )

        def step(self, item: float) -> None:
            self.notify()
            self.gather(item, "step")

        def gather(self, item: float, role: str) -> None:
            self.log.append(f"{self.name} {role}")
            mine = torch.tensor([item], device=self.device)
            parts = [torch.empty_like(mine) for _ in range(dist.get_world_size(self.group))]
            dist.all_gather(parts, mine, group=self.group)
            self.rows.append([part.item() for part in parts])

    return Collector()


def module(ctx: RankContext, name: str = "module", **options: Any) -> Any:
    """A torch module that is a joinable too, with the module first among its bases (as DDP is built)."""
    base: Any = ctx.subject.Joinable

    class JoinableModule(nn.Module, base):
        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.inner = nn.Linear(2, 2)
            base.__init__(self)
            self.log: list[str] = options.get("log", [])

        @property
        def join_device(self) -> Any:
            return ctx.device

        @property
        def join_process_group(self) -> Any:
            return ctx.group

        def join_hook(self, **kwargs: Any) -> Any:
            del kwargs
            return hook_of(
                ctx, lambda: self.log.append(f"{name} main"), lambda last: self.log.append(f"{name} post {last}")
            )

        def step(self) -> Any:
            handle = ctx.subject.Join.notify_join_context(self)
            self.log.append(f"{name} step")
            return handle

    return JoinableModule()
