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
from .oracle import OPEN, answers
from .program import Program
from .source import source

Noted = dict[tuple[str, str], Any]
DEADLINE_S = 20.0
PATIENT_S = 15.0  # what has hung must hang once more, and for so long, on a machine that may be busy
#: Of the largest number of a tensor, where sums of several ranks round: twenty steps of the significand's last places.
CLOSE = {torch.float64: 2.0**-18, torch.float32: 2.0**-14, torch.float16: 2.0**-6, torch.bfloat16: 2.0**-4,
         torch.complex64: 2.0**-14}  # fmt: skip
DIVERGED = 2.0**20


@dataclass(frozen=True)
class Failure:
    """What went wrong with a program."""

    program: Program
    kind: str  # differs, raises, hangs, dies
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


def judged(program: Program, cluster: Cluster, subject: str, stall_s: float | None = None) -> Failure | None:
    """Run the program on ranks of a cluster; what is wrong with them, None if nothing is."""
    run = cluster.run(
        train, (source(program),), world=program.world, subject=subject, deadline_s=DEADLINE_S, stall_s=stall_s,
        group_timeout_s=60.0,
    )  # fmt: skip
    return of_run(program, run)


def of_run(program: Program, run: Run) -> Failure | None:
    """What is wrong with a run of the program."""
    kinds = {Hung: "hangs", Died: "dies", Raised: "raises"}
    ends = [end for end in run.outcomes if not isinstance(end, Finished)]
    for wanted in (Died, Raised, Hung):
        if any(isinstance(end, wanted) for end in ends):
            evidence = "\n".join([run.summary(), *run.details()])
            return Failure(program, kinds[wanted], _ends(run), evidence)
    difference = of_ranks(program, run.values())
    return Failure(program, "differs", difference) if difference else None


def of_ranks(program: Program, noted: Sequence[Noted]) -> str:
    """The first thing that some rank noted and one process says otherwise; empty if there is none."""
    expected = answers(program)
    for rank, notes in enumerate(noted):
        mine = {key: unpacked(value) for key, value in notes.items()}
        difference = first_difference(program, mine, expected.get(rank, {}))
        if difference:
            return f"rank {rank}, {difference}"
    return ""


def first_broken(programs: Sequence[Program], by_rank: Sequence[Sequence[Noted]]) -> str:
    """The first of these programs that ``train_each`` has not trained as one process does, and how; empty if none."""
    for program, *noted in zip(programs, *by_rank, strict=True):
        difference = of_ranks(program, noted)
        if difference:
            return f"{difference}, in the program {program.json()}"
    return ""


def failure_of(program: Program, cluster: Cluster, subject: str, stall_s: float | None = None) -> Failure | None:
    """As ``judged``; an error of the exploration itself is a failure, too."""
    try:
        return judged(program, cluster, subject, stall_s)
    except Exception as error:
        return Failure(program, "falls over", f"{type(error).__name__}: {error}", traceback.format_exc())


def _ends(run: Run) -> str:
    lines = run.summary().splitlines()
    worst = [line for line in lines if "raised" in line or "died" in line] or [line for line in lines if "hung" in line]
    return worst[0] if worst else run.summary()


def first_difference(program: Program, noted: Noted, expected: Noted) -> str:
    """The first thing that a rank noted and one process says otherwise; empty if there is none."""
    if list(noted) != list(expected):
        missing = [key for key in expected if key not in noted]
        added = [key for key in noted if key not in expected]
        if missing or added:
            what, (moment, name) = ("is missing", missing[0]) if missing else ("was not expected", added[0])
            return f"{moment}: {name} {what}"
    exactly = is_exact(program)
    places = _places(program)
    for (moment, name), value in expected.items():
        if not exactly and _diverges(value):
            return ""
        found = noted[moment, name]
        if not _same(found, value, exactly, places):
            dtypes = [f" ({each.dtype})" for each in (found, value) if isinstance(each, torch.Tensor)]
            of, than = dtypes if len(set(dtypes)) == 2 else ("", "")
            return f"{moment}: {name} is {_shown(found)}{of}, one process says {_shown(value)}{than}"
    return ""


def _places(program: Program) -> torch.dtype:
    """The dtype that numbers have gone through and that has the fewest places."""
    if program.has("autocast"):
        return torch.bfloat16
    if program["hook"] in ("fp16", "wrapped") or program["types"] == "mixed":
        return torch.float16
    if program.has("lowered"):
        return torch.bfloat16
    if program["further layer"] == "attention":
        return torch.float16  # what rounds in an exponent is magnified
    before = {"half": torch.float16, "bfloat16": torch.bfloat16}.get(program["types"], torch.float32)
    return before if program.has("cast") else torch.float64


def is_exact(program: Program) -> bool:
    """Whether no sum rounds, so every bit is known: gradients are whole multiples of twelve, and weights are short.

    Elsewhere, as with weights that have been divided or decayed again and again, a kernel may even depend on how its
    memory is aligned.
    """
    rounding = "lowered", "autocast", "further layer"
    if program["types"] == "bfloat16" or program["accumulation"] == "uncleared" or any(map(program.has, rounding)):
        return False
    if program["second model"] == "behind":
        return False
    whole = program["wiring"] == "side by side" and not program.has("norm") and program["clipped"] != "by norm"
    short = not program.has("rate") or program["types"] in ("float", "double")
    return whole and short and program["optimizer"] not in ("adam", "fused", "decay")


def _diverges(value: Any) -> bool:
    """Whether training has run away in one process: from then on every step magnifies what rounding did."""
    numbers = isinstance(value, torch.Tensor) and value.dtype in CLOSE and value.numel() > 0
    return numbers and value.abs().max().item() > DIVERGED


def _same(found: Any, value: Any, exactly: bool, places: torch.dtype) -> bool:
    """Whether two values are equal, or as close as rounding to a dtype, or to one of fewer ``places``, leaves them."""
    if isinstance(value, str) and value == OPEN:
        return True
    if not isinstance(value, torch.Tensor) or not isinstance(found, torch.Tensor):
        return type(found) is type(value) and bool(found == value)
    if found.shape != value.shape or found.dtype != value.dtype:
        return False
    if torch.equal(found, value):
        return True
    if value.dtype not in CLOSE:
        return False
    if not value.isfinite().all():  # it has left the range of numbers, where rounding decides about everything
        return not exactly and not found.isfinite().all()
    if exactly:
        return False
    most = max(value.abs().max().item(), 2.0**-2) * max(CLOSE[value.dtype], CLOSE[places])
    gap = (found - value).abs().max().item()
    return math.isfinite(gap) and gap <= most


def _shown(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return str(value)
    numbers = value.flatten()[:6].tolist()
    more = ", …" if value.numel() > 6 else ""
    return f"[{', '.join(f'{number:g}' for number in numbers)}{more}]"
