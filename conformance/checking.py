"""How a check is written: a sentence as its name, the clauses it decides, the worlds it makes sense on, real ranks.

    @check("JOIN-025", worlds=(2, 3, 4))
    def test_main_hooks_make_up_each_ranks_deficit(ranks):
        schedule = [2 + rank for rank in range(ranks.world)]
        calls = ranks(count_main_hooks, schedule)           # runs on every rank; a list of results, by rank
        assert calls == [max(schedule) - mine for mine in schedule]

The rank function (``count_main_hooks(ctx, schedule)``) is an ordinary module-level function; it reads the
implementation from ``ctx.subject`` and never imports one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .ranks import Cluster, Run
from .subjects import Subject

WORLDS = (1, 2, 3, 4)
MANY = (2, 3, 4)

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Check:
    """What a check says of itself."""

    clauses: tuple[str, ...]
    worlds: tuple[int, ...]
    backends: tuple[str, ...]  # empty: any
    deadline_s: float | None


class NotRun(Exception):
    """The check cannot be made on this machine (no accelerator, no RPC …). Never counts as passed."""


def check(
    *clauses: str, worlds: Sequence[int] = WORLDS, backends: Sequence[str] = (), deadline_s: float | None = None
) -> Callable[[F], F]:
    """Declare a test to be the check of ``clauses``.

    ``worlds`` are the world sizes at which the check has something to say; it runs at those that were asked for.
    ``deadline_s`` replaces the cluster's deadline for each run that the check makes.
    """

    def declare(test: F) -> F:
        test.check = Check(tuple(clauses), tuple(worlds), tuple(backends), deadline_s)  # type: ignore[attr-defined]
        return test

    return declare


@dataclass
class Ranks:
    """The fixture ``ranks``: one subject, one backend, one world size."""

    cluster: Cluster
    subject_spec: str
    backend: str
    world: int
    deadline_s: float | None = None
    notes: list[str] = field(default_factory=list)

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        world: int | None = None,
        ledger: bool = False,
        init: bool = True,
        deadline_s: float | None = None,
        env: dict[str, str] | None = None,
    ) -> Run:
        """Run ``function(ctx, *args)`` on fresh ranks; every outcome is allowed and returned.

        ``ledger`` records every collective; ``init=False`` starts the ranks without a process group.
        """
        return self.cluster.run(
            function, args, world=world or self.world, subject=self.subject_spec, ledger=ledger, init=init,
            deadline_s=deadline_s or self.deadline_s, env=env,
        )

    def __call__(self, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        """Like ``run``, but every rank must finish; returns their results in rank order."""
        return self.run(function, *args, **options).values()

    def at_limit(self, note: str) -> None:
        """Say that the subject showed a documented weakness (a LIMIT clause) instead of exceeding it.

        Only for weaknesses that do no silent harm: never for wrong numbers, a hang, or a lasting side effect.
        """
        self.notes.append(note)


__all__ = ["MANY", "WORLDS", "Check", "NotRun", "Ranks", "Subject", "check"]
