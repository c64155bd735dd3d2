"""How a check is written: a sentence as its name, the clauses it decides, the worlds it makes sense on, real ranks.

    @check("JOIN-025", worlds=(2, 3, 4))
    def test_main_hooks_make_up_each_ranks_deficit(ranks):
        schedule = [2 + rank for rank in range(ranks.world)]
        calls = ranks(count_main_hooks, schedule)           # runs on every rank; a list of results, by rank
        assert calls == [max(schedule) - mine for mine in schedule]

The rank function (``count_main_hooks(ctx, schedule)``) is an ordinary module-level function; it reads the
implementation from ``ctx.subject`` and never imports one.

One check over several scenarios takes a second argument; each scenario is recorded by its name:

    @check("DDPJ-007", worlds=(2, 4), scenarios={"rank 0 first": [1, 3], "rank 0 last": [3, 1]})
    def test_the_divisor_is_the_initial_world_size(ranks, scenario): ...

One that calls a rank function for several arguments makes them one run:

    for schedule, told in ranks.each(train, schedules):
        assert told == ...

One that holds for every schedule of inputs takes an argument ``schedules`` (see ``search``): it says what is wrong with
some schedules, and is given the usual ones, drawn ones, or a single one that somebody typed.

How a check ends: returning is *passed*; an AssertionError is *failed*; a rank that hung or died, met by
``ranks(...)`` or ``run.values()``, is *hung* or *crashed*; ``Unsupported`` (on a rank or in the check) is
*unsupported*; ``NotRun`` and ``NotRunnable`` are *not run*, with their text as the reason. An error of a check's own
lines (``ranks.origin`` says how that is told) is a *suite error*, which says nothing about the subject. So assert what
a subject hands over before you reach into it: ``None[0]`` is the check's own fall.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..ranks import Cluster, Raised, RankContext, Run, RunFailed
from ..subjects import Subject, resolve

WORLDS = (1, 2, 3, 4)
MANY = (2, 3, 4)

#: By area: what no check of its clauses can do without, one of each row
NAMES = {
    "ZERO": (("ZeroRedundancyOptimizer",),),
    "HOOK": (
        ("ZeroRedundancyOptimizer",), ("DistributedDataParallel",),
        ("hook_with_zero_step", "hook_with_zero_step_interleaved", "ddp_zero_hook"),
    ),
}  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Check:
    """What a check says of itself."""

    clauses: tuple[str, ...]
    worlds: tuple[int, ...]
    backends: tuple[str, ...]  # empty: any
    deadline_s: float | None
    scenarios: Mapping[str, Any] = field(default_factory=dict)  # by name; empty: the check takes no scenario
    beyond: bool = True  # whether it also runs at larger worlds than it declares, if they are asked for
    at: Callable[[Any], Collection[int]] | None = None  # the worlds of one scenario; None: those of the check
    each: bool = True  # whether the quick tier, too, runs every scenario

    def ask_for_names(self, subject: Subject) -> None:
        """Raise ``Unsupported`` if the subject lacks a name that all areas of the check's clauses need.

        Before anything is built: else what its other classes do wrong would be held against a clause that it lacks.
        """
        areas = [NAMES.get(clause.partition("-")[0], ()) for clause in self.clauses]
        for row in [row for row in areas[0] if all(row in area for area in areas)]:
            if not any(name in subject.names for name in row):
                getattr(subject, row[0])

    def runs_at(self, world: int) -> bool:
        """A check for 3 and for 4 ranks is taken to be general, and runs at any larger world that is asked for."""
        general = self.beyond and {3, 4} <= set(self.worlds) and world > 4
        return world in self.worlds or general

    def runs_on(self, backend: str) -> bool:
        """Whether the check has something to say on this backend (its own name, without the kind of device)."""
        return not self.backends or backend in self.backends

    def fits(self, scenario: Any, world: int) -> bool:
        """Whether this scenario of the check is meant for this world."""
        return self.at is None or world in self.at(scenario)


class NotRun(Exception):
    """The check cannot be made on this machine (no accelerator, no RPC …). Never counts as passed."""


def check(
    *clauses: str,
    worlds: Sequence[int] = WORLDS,
    backends: Sequence[str] = (),
    deadline_s: float | None = None,
    scenarios: Mapping[str, Any] | None = None,
    beyond: bool = True,
    at: Callable[[Any], Collection[int]] | None = None,
    each: bool = True,
) -> Callable[[F], F]:
    """Declare a test to be the check of ``clauses``.

    ``worlds`` are the world sizes at which the check has something to say; it runs at those that were asked for.
    A check for 3 and 4 also runs at larger worlds that are asked for, unless ``beyond=False``.
    ``backends`` limits it to these (otherwise any). ``deadline_s`` replaces the cluster's deadline for each run that
    the check makes. ``scenarios`` maps names to values of the argument ``scenario``, one at a time; ``at`` tells
    the worlds of a scenario's value, where they are not those of the check. With ``each=False`` there are so many that
    the quick tier runs the first only and says "part".
    """
    if not clauses:
        raise TypeError("a check needs at least one clause: @check('JOIN-001')")
    about = Check(tuple(clauses), tuple(worlds), tuple(backends), deadline_s, dict(scenarios or {}), beyond, at, each)

    def declare(test: F) -> F:
        test.check = about  # type: ignore[attr-defined]
        return test

    return declare


@dataclass(repr=False)
class Ranks:
    """The fixture ``ranks``: one subject, one backend, one world size."""

    cluster: Cluster
    subject_spec: str
    backend: str
    world: int
    deadline_s: float | None = None
    notes: list[str] = field(default_factory=list)
    last_run: Run | None = None  # for the witness of a failed assertion
    always_trace: bool = False  # record every collective even if the check does not ask for it
    reuse: bool = False  # run on ranks that have passed other checks, which is quicker: only a pass counts then

    def __repr__(self) -> str:
        return f"{self.world} ranks of {self.subject_spec} on {self.backend}"

    @property
    def subject(self) -> Subject:
        """The subject itself, for what can be seen without ranks."""
        return resolve(self.subject_spec)

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        world: int | None = None,
        trace: bool = False,
        init: bool = True,
        deadline_s: float | None = None,
        env: dict[str, str] | None = None,
        stall_s: float | None = None,
        group_timeout_s: float | None = None,
    ) -> Run:
        """Run ``function(ctx, *args)`` on ranks with a new process group; every outcome is allowed and returned.

        ``trace`` records every collective; ``init=False`` starts the ranks without a process group; ``stall_s``
        is for ranks that do nothing for longer than the cluster's stall (3 s) on purpose; ``group_timeout_s`` is the
        default group's own timeout (longer than the deadline unless given).
        A rank that raises ``Unsupported`` or ``NotRun``, or on which the check itself fell over, ends the check: there
        is nothing left to judge.
        """
        self.last_run = run = self.cluster.run(
            function, args, world=world or self.world, subject=self.subject_spec, init=init,
            trace=trace or self.always_trace, deadline_s=deadline_s or self.deadline_s, env=env,
            stall_s=stall_s, group_timeout_s=group_timeout_s, reuse=self.reuse,
        )
        if any(isinstance(end, Raised) and (end.no_answer or end.fell_over) for end in run.outcomes):
            raise RunFailed(run)
        return run

    def __call__(self, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        """Like ``run``, but every rank must finish; returns their results in rank order."""
        return self.run(function, *args, **options).values()

    def each(
        self, function: Callable[..., Any], several: Iterable[Any], *more: Any, spread: bool = False, **options: Any
    ) -> Iterator[tuple[Any, list[Any]]]:
        """Run ``function(ctx, one, *more)`` for one after the other: each, and its results in rank order.

        Where they are tuples to be ``spread``, it is ``function(ctx, *one, *more)``. Costs one run, in whose process
        group all calls are: so for calls that leave nothing behind there, and among them no failed collective.
        """
        ones = list(several)
        calls = [(*(one if spread else (one,)), *more) for one in ones]
        limit_s = options.pop("deadline_s", None) or self.deadline_s
        by_rank = self(_Each(function), calls, deadline_s=limit_s and limit_s * len(calls), **options)
        return zip(ones, map(list, zip(*by_rank, strict=True)), strict=True)

    def at_limit(self, note: str) -> None:
        """Say that the subject showed a documented weakness (a LIMIT clause) instead of exceeding it.

        Only for weaknesses that do no silent harm: never for wrong numbers, a hang, or a lasting side effect. A check
        that accepts a refusal in place of a right result says so here: what a subject does right today could turn
        into an error unseen.
        """
        self.notes.append(note)


class _Each:
    """A rank function that makes several calls of another."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)  # its errors are those of the other's module: see ranks.origin
        self._function = function

    def __call__(self, ctx: RankContext, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [self._function(ctx.part(f"call {place}"), *args) for place, args in enumerate(calls)]


__all__ = ["MANY", "WORLDS", "Check", "NotRun", "Ranks", "Subject", "check"]
