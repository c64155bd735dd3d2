"""Runs a program on real ranks and in one process, and says where they differ."""

from __future__ import annotations

import math
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..ranks import Cluster, Died, Finished, Hung, Raised, RankContext, Run
from .loading import loaded
from .looking import Look
from .oracle import OPEN
from .program import Program
from .rounding import diverges
from .source import source
from .tolerance import ANYTHING, Noted, Tolerance

DEADLINE_S = 20.0
PATIENT_S = 15.0  # what has hung must hang once more, and for so long, on a machine that may be busy
FALLS_OVER = "falls over"  # the kind of a failure that is the exploration's own


@dataclass(frozen=True)
class Failure:
    """What went wrong with a program."""

    program: Program
    kind: str  # differs, raises, hangs, dies, falls over
    text: str  # the first thing that is wrong, in one line
    evidence: str = ""

    @property
    def first_line(self) -> str:
        return self.text.splitlines()[0][:300] if self.text else ""


def train(ctx: RankContext, text: str) -> Noted:
    """Rank function: what this rank notes of the program."""
    look = Look()
    with loaded(text, ctx.subject) as module:
        module.train(ctx.rank, look)
    return {key: packed(value) for key, value in look.noted.items()}


@dataclass(frozen=True)
class Packed:
    """A tensor on its way home: pickling many small ones as tensors takes longer than training them."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    data: bytes


def packed(value: Any) -> Any:
    """A tensor as its bytes; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    flat = value.cpu().contiguous().view(-1)
    return Packed(value.dtype, tuple(value.shape), flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")


def unpacked(value: Any) -> Any:
    """The tensor of its bytes; anything else as it is."""
    if not isinstance(value, Packed):
        return value
    if not value.data:
        return torch.empty(value.shape, dtype=value.dtype)
    return torch.frombuffer(bytearray(value.data), dtype=value.dtype).view(value.shape)


def train_each(ctx: RankContext, texts: Sequence[str]) -> list[Noted]:
    """Rank function: several programs one after the other."""
    return [train(ctx, text) for text in texts]


def judged(
    program: Program, cluster: Cluster, subject: str, stall_s: float | None = None, partly: list[str] | None = None
) -> Failure | None:
    """Run the program on ranks of a cluster; what is wrong with them, None if nothing is.

    ``partly`` is given the moment from which on not everything was compared, if there is one.
    """
    run = cluster.run(
        train, (source(program),), world=program.world, subject=subject, deadline_s=DEADLINE_S, stall_s=stall_s,
        group_timeout_s=60.0,
    )  # fmt: skip
    return of_run(program, run, partly)


def of_run(program: Program, run: Run, partly: list[str] | None = None) -> Failure | None:
    """What is wrong with a run of the program."""
    kinds = {Hung: "hangs", Died: "dies", Raised: "raises"}
    ends = [end for end in run.outcomes if not isinstance(end, Finished)]
    for wanted in (Died, Raised, Hung):
        if any(isinstance(end, wanted) for end in ends):
            evidence = "\n".join([run.summary(), *run.details()])
            return Failure(program, kinds[wanted], _ends(run), evidence)
    difference = of_ranks(Tolerance(program), run.values(), partly)
    return Failure(program, "differs", difference) if difference else None


def of_ranks(tolerance: Tolerance, noted: Sequence[Noted], partly: list[str] | None = None) -> str:
    """The first thing that some rank noted and one process says otherwise; empty if there is none.

    ``partly`` is given the moment from which on not everything was compared, if there is one.
    """
    for rank, notes in enumerate(noted):
        mine = {key: unpacked(value) for key, value in notes.items()}
        difference = first_difference(tolerance, mine, tolerance.expected.get(rank, {}), rank, partly)
        if difference:
            return f"rank {rank}, {difference}"
    return ""


def first_broken(programs: Sequence[Program], by_rank: Sequence[Sequence[Noted]]) -> str:
    """The first of these programs that ``train_each`` has not trained as one process does, and how; empty if none."""
    for program, *noted in zip(programs, *by_rank, strict=True):
        difference = of_ranks(Tolerance(program), noted)
        if difference:
            return f"{difference}, in the program {program.json()}"
    return ""


def failure_of(
    program: Program, cluster: Cluster, subject: str, stall_s: float | None = None, partly: list[str] | None = None
) -> Failure | None:
    """As ``judged``; an error of the exploration itself is a failure, too."""
    try:
        return judged(program, cluster, subject, stall_s, partly)
    except Exception as error:
        return Failure(program, FALLS_OVER, f"{type(error).__name__}: {error}", traceback.format_exc())


def _ends(run: Run) -> str:
    lines = run.summary().splitlines()
    worst = [line for line in lines if "raised" in line or "died" in line] or [line for line in lines if "hung" in line]
    return worst[0] if worst else run.summary()


def first_difference(
    tolerance: Tolerance, noted: Noted, expected: Noted, rank: int = 0, partly: list[str] | None = None
) -> str:
    """The first thing that a rank noted and one process says otherwise; empty if there is none."""
    if list(noted) != list(expected):
        missing = [key for key in expected if key not in noted]
        added = [key for key in noted if key not in expected]
        if missing or added:
            what, (moment, name) = ("is missing", missing[0]) if missing else ("was not expected", added[0])
            return f"{moment}: {name} {what}"
    left_out: list[str] = []
    for (moment, name), value in expected.items():
        if not tolerance.exactly and diverges(name, value):
            left_out.append(moment)
            break
        found, most = noted[moment, name], tolerance.usual(value)
        if _same(found, value, most):
            continue
        if 0 < most < ANYTHING and _comparable(found, value):
            grown = tolerance.grown(rank, (moment, name), value)
            if grown is None:
                left_out.append(moment)
                continue
            if _same(found, value, grown):
                continue
            most = grown
        return f"{moment}: {name}{_told(found, value, most)}"
    if partly is not None:
        partly += left_out[:1]
    return ""


def _comparable(found: Any, value: Any) -> bool:
    """Whether both are tensors of one kind, so that only their numbers can differ."""
    both = isinstance(found, torch.Tensor) and isinstance(value, torch.Tensor)
    return both and (found.shape, found.dtype) == (value.shape, value.dtype)


def _same(found: Any, value: Any, most: float) -> bool:
    """Whether two values are equal, or as close as rounding leaves them."""
    if isinstance(value, str) and value == OPEN:
        return True
    if not isinstance(value, torch.Tensor) or not isinstance(found, torch.Tensor):
        return type(found) is type(value) and bool(found == value)
    if not _comparable(found, value):
        return False
    if torch.equal(found, value):
        return True
    if most == ANYTHING:  # it has left the range of numbers, where rounding decides about everything
        return not found.isfinite().all()
    return most > 0 and (found - value).abs().max().item() <= most


def _told(found: Any, value: Any, most: float) -> str:
    """What differs: of two tensors the number that does most, with its place."""
    if not _comparable(found, value):
        return f" is {_shown(found)}, one process says {_shown(value)}"
    gaps = (found.to(torch.complex128) - value.to(torch.complex128)).abs().nan_to_num(math.inf, math.inf)
    flat = int(gaps.argmax())
    place = [int(each) for each in torch.unravel_index(torch.tensor(flat), value.shape)]
    here, there, gap = (each.reshape(-1)[flat].item() for each in (found, value, gaps))
    rounding = f", {most:.3g} allowed for rounding" if most else ""
    return f"{place or ''} is {here:.9g}, one process says {there:.9g}: {gap:.3g} apart{rounding}"


def _shown(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return str(value)
    numbers = ", ".join(f"{number:g}" for number in value.flatten()[:6].tolist())
    return f"[{numbers}{', …' if value.numel() > 6 else ''}] ({value.dtype}, {tuple(value.shape)})"
