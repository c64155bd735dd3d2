"""What the checks of plain DDP share: steps on a rank's own data, and ears for errors, warnings and collectives."""

from __future__ import annotations

import inspect
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .checking import NotRun
from .ranks import Caught, Event, RankContext, caught
from .subjects import Unsupported
from .training import Numbers, ddp, gradients, private

TINY_MIB = 1e-4  # about a hundred bytes: every layer of four by four has a bucket of its own


def wrapped(ctx: RankContext, model: nn.Module, **options: Any) -> Any:
    """The subject's DDP around ``model``, on the rank's device."""
    return ddp(ctx, model.to(ctx.device), **options)


def mine(ctx: RankContext, times: int = 1) -> torch.Tensor:
    """One element, ``12 * (rank + 1) * times``: another one on each rank, and divisible by 1, 2, 3 and 4."""
    return torch.full((1, 1), 12.0 * (ctx.rank + 1) * times, device=ctx.device)


def mean_of_all(world: int, times: int = 1) -> float:
    """The average of ``mine`` over all ranks."""
    return sum(12.0 * (rank + 1) * times for rank in range(world)) / world


def trained(model: Any, *inputs: Any, **keywords: Any) -> Numbers:
    """One forward and backward from fresh gradients; the gradients."""
    model.zero_grad(set_to_none=True)
    model(*inputs, **keywords).sum().backward()
    return gradients(model)


def takes(ctx: RankContext, *arguments: str) -> None:
    """``Unsupported`` unless the subject's constructor has these arguments, which older releases lack."""
    known = inspect.signature(ctx.subject.DistributedDataParallel).parameters
    missing = [argument for argument in arguments if argument not in known]
    if missing:
        raise Unsupported(f"DistributedDataParallel of {ctx.subject.name} has no argument {', '.join(missing)}")


# How a subject complains that it has none; whole words, for other errors speak of "downstream" systems.
_ACCELERATOR_WORDS = re.compile(r"\b(accelerators?|streams?|events)\b")


def asks_for_accelerator(error: RuntimeError | Caught) -> bool:
    """Whether an error on the CPU says that this needs an accelerator, however the installed torch was built.

    A torch that was built for one, on a machine without, says so by a class of its own or with the words of a driver
    that is not there: the same as it says when it is asked for a stream.
    """
    if isinstance(error, Caught):
        text, of_one = error.text, error.is_a(torch.AcceleratorError)
    else:
        text, of_one = str(error), isinstance(error, torch.AcceleratorError)
    return of_one or _ACCELERATOR_WORDS.search(text) is not None or text in _refusals()


def _refusals() -> list[str]:
    """What the installed torch says here when it is asked for an accelerator that is not there."""
    asked = (torch.Stream, torch.accelerator.current_stream, torch.cuda.Stream, torch.cuda.current_stream)
    return [error.text for ask in asked if (error := caught(ask)) is not None and error.text]


def or_lacks_accelerator(ctx: RankContext, act: Callable[[], Any]) -> Any:
    """What ``act`` returns; *not run* where the subject can do it only with an accelerator and there is none."""
    try:
        return act()
    except RuntimeError as error:
        if ctx.device.type == "cpu" and asks_for_accelerator(error):
            raise NotRun(f"{ctx.subject.name} needs an accelerator for this") from error
        raise


def lowered(ctx: RankContext, config: Mapping[str, torch.dtype]) -> Any:
    """The subject's configuration for mixed precision with these dtypes; ``Unsupported`` if it has none."""
    takes(ctx, "mixed_precision")
    return private(ctx.subject.ddp, "_MixedPrecision")(**config)


def mixed(ctx: RankContext, model: nn.Module, config: Mapping[str, torch.dtype], **options: Any) -> Any:
    """``model`` under DDP with these dtypes lowered: ``mixed(ctx, model, {"param_dtype": torch.float16})``."""
    return wrapped(ctx, model, mixed_precision=lowered(ctx, config), **options)


# -- errors and warnings


def assert_refused(errors: Iterable[Caught | None], kind: type[Exception], *words: str) -> None:
    """Every error is there, is of the class that is documented, and says these words."""
    for rank, error in enumerate(errors):
        assert error is not None, f"rank {rank} was not refused"
        assert error.is_a(kind), f"rank {rank} got {error}"
        silent = [word for word in words if word.lower() not in error.text.lower()]
        assert not silent, f"the error of rank {rank} does not say {silent}: {error}"


def warned(act: Callable[[], object]) -> list[tuple[str, str]]:
    """Call ``act``; class and text of every warning that it gave."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        act()
    return [(warning.category.__name__, str(warning.message)) for warning in heard]


def about(heard: Sequence[tuple[str, str]], category: str, *words: str) -> list[str]:
    """Those warnings of a class that say all these words."""
    return [text for kind, text in heard if kind == category and all(word.lower() in text.lower() for word in words)]


def said(act: Callable[[], object]) -> str:
    """Call ``act``; all that it warned of in Python, and all that it wrote, native code included."""
    with tempfile.TemporaryFile() as paper:
        sys.stdout.flush()
        sys.stderr.flush()
        kept = [os.dup(stream) for stream in (1, 2)]
        try:
            for stream in (1, 2):
                os.dup2(paper.fileno(), stream)
            heard = warned(act)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            for stream, copy in zip((1, 2), kept, strict=True):
                os.dup2(copy, stream)
                os.close(copy)
        paper.seek(0)
        return paper.read().decode(errors="replace") + "".join(f"{text}\n" for _, text in heard)


# -- collectives


def started(ctx: RankContext, act: Callable[[], object]) -> list[Event]:
    """Call ``act``; the collectives that this rank started meanwhile (only in a recorded run)."""
    before = len(ctx.ledger())
    act()
    return list(ctx.ledger()[before:])


def reduced_elements(events: Iterable[Event]) -> int:
    """How many float elements these collectives all-reduce: gradients, but neither control messages nor bitmaps."""
    reductions = [event for event in events if event.op in ("all_reduce", "reduce_scatter", "reduce")]
    return sum(torch.Size(event.shape).numel() for event in reductions if event.dtype.startswith(("float", "bfloat")))
