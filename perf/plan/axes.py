"""The axes of a sweep: what each means, its legal values and its default, and which combinations make no sense."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from conformance.bad_input import BadInput
from conformance.hosts import Network

from ..workloads import COUNTS, KNOWN, PROFILES, SIZES, SPARSE

MOST_RANKS = 256


@dataclass(frozen=True)
class Axis:
    """One axis. ``values`` lists what is legal; without it the value must be of ``kind`` and within ``limits``."""

    about: str
    default: Any
    values: tuple[Any, ...] = ()
    kind: type = str
    limits: tuple[float, float] = (0, 0)
    shared: bool = False  # equal for all cells of a group; the other axes tell the variants of a group apart


AXES: dict[str, Axis] = {
    "workload": Axis("what is trained", "mlp", tuple(KNOWN), shared=True),
    "size": Axis("sizes of the workload; auto: gpu on a GPU, else cpu; a number: so many parameters (tiny); a model: "
                 "its profile (paced)", "auto", ("auto", *SIZES, *COUNTS, *PROFILES), shared=True),
    "pace": Axis("of paced: how many times as long as in its profile the compute takes", 1.0, kind=float,
                 limits=(0, 100), shared=True),
    "network": Axis("one host of this machine for each rank, with links so fast: 200mbit, or 1gbit 200us with a delay; "
                    "empty: all ranks on this machine", "", shared=True),
    "world": Axis("number of ranks; also max (WORLD) and all (1, 2, 4 … WORLD)", "max", kind=int,
                  limits=(1, MOST_RANKS), shared=True),
    "skew": Axis("how many inputs each rank has; straggler: as many as the others, but it is slower", "even",
                 ("even", "one_short", "linear", "halves", "straggler", "zero_input"), shared=True),
    "skew_fraction": Axis("0: no skew, 1: the shortest rank has nothing (or a straggler takes twice as long)", 0.5,
                          kind=float, limits=(0, 1), shared=True),
    "unit": Axis("one sample: an iteration (step) or a whole uneven run (epoch); auto: epoch if inputs are uneven",
                 "auto", ("auto", "step", "epoch"), shared=True),
    "optimizer": Axis("the optimizer", "sgd", ("sgd", "adam"), shared=True),
    "subject": Axis("the implementation; given by SUBJECT", "", shared=False),
    "hook": Axis("none: DDP, then the optimizer's step; sequential, interleaved: the overlap hooks; reduce_scatter…: "
                 "ours alone; no_sync: DDP without its communication; local: the bare model, the floor", "none",
                 ("none", "sequential", "interleaved", "reduce_scatter", "reduce_scatter_interleaved", "no_sync",
                  "local")),
    "strategy": Axis("for uneven inputs: join, throwing (join that raises early), flag (asks all ranks before every "
                     "step), drop_last (stops with the shortest); plain: nothing; after_join: plain, a join was before",
                     "plain", ("plain", "join", "throwing", "flag", "drop_last", "after_join")),
    "zero": Axis("the optimizer's state: off (a local optimizer), on (ZeRO), views (ZeRO with bucket views)", "off",
                 ("off", "on", "views")),
    "cap_mib": Axis("bucket cap of DDP in MiB; 0: not given (25, the first 1)", 0.0, kind=float, limits=(0, 1e4)),
    "bucket_view": Axis("gradient_as_bucket_view of DDP", False, (False, True)),
    "shard_buckets": Axis("shard_buckets of the overlap hooks", False, (False, True)),
    "settings": Axis("best: batched_grad_copy=True as well, where the constructor has it", "default",
                     ("default", "best")),
}  # fmt: skip


def variant_defaults(**chosen: Any) -> dict[str, Any]:
    """The axes that tell the variants of a group apart (but for the subject) at their defaults, or as ``chosen``."""
    return {name: axis.default for name, axis in AXES.items() if not axis.shared and name != "subject"} | chosen


UNEVEN = ("one_short", "linear", "halves", "zero_input")
ALONE = ("local", "no_sync")  # every rank trains for itself
OVERLAPPED = ("sequential", "interleaved", "reduce_scatter", "reduce_scatter_interleaved")
Axes = dict[str, Any]


def nearest(word: str, known: Iterable[str]) -> str:
    """An ending for an error: the names that were probably meant, or all there are."""
    known = [str(each) for each in known]
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known)}"


def checked(name: str, value: Any, where: str) -> Any:
    """The value, if it is legal on this axis (numbers as this axis has them)."""
    if name not in AXES:
        raise BadInput(f"{where}: unknown axis {name!r}; {nearest(name, AXES)}")
    axis = AXES[name]
    if name == "world" and value in ("max", "all"):
        return value
    if name == "subject":
        raise BadInput(f"{where}: the subject is no axis of a sweep; give SUBJECT, or --subject")
    if name == "network":
        return _network(value, where)
    if axis.values:
        if not any(value == each and type(value) is type(each) for each in axis.values):
            raise BadInput(f"{where}: {name} cannot be {value!r}; {nearest(str(value), map(str, axis.values))}")
        return value
    number = isinstance(value, int) or (axis.kind is float and isinstance(value, float))
    if not number or isinstance(value, bool) or not axis.limits[0] <= value <= axis.limits[1]:
        low, high = axis.limits
        raise BadInput(f"{where}: {name} cannot be {value!r}; give a number from {low:g} to {high:g}")
    return axis.kind(value)


def _network(value: Any, where: str) -> str:
    """A network as a cell names it."""
    try:
        text = " ".join(str(value).lower().split())
        return text and str(Network.of(1, text) and text)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from error


def pointless(axes: Axes) -> str:
    """Why this combination is left out of a sweep; empty if it is measured."""
    for rule, why in _RULES:
        if rule(axes):
            return why
    return ""


def known_trouble(axes: Axes) -> str:
    """What is known to go wrong with a cell that is measured all the same; empty for the others."""
    if axes["subject"] == "torch" and axes["hook"] == "interleaved" and axes["backend"] == "gloo":
        return "torch's interleaved hook broadcasts and waits inside a future's callback, which hangs on Gloo"
    if axes["subject"] == "torch" and axes["shard_buckets"]:
        return "torch's shard_buckets ends in an assertion where a bucket needs more pieces than there are ranks"
    return ""


def _uneven(axes: Axes) -> bool:
    return axes["skew"] in UNEVEN


_RULES: tuple[tuple[Callable[[Axes], bool], str], ...] = (
    (lambda a: a["size"] in PROFILES and a["workload"] != "paced", "only paced has sizes that are models"),
    (lambda a: a["pace"] != 1 and a["workload"] != "paced", "only paced workloads have a pace"),
    (lambda a: a["size"] in COUNTS and a["workload"] != "tiny", "only tiny has sizes that count parameters"),
    (lambda a: bool(a["network"] and known_trouble(a)), "it hangs, and over a network nobody needs to see that again"),
    (lambda a: a["world"] == 1 and a["skew"] != "even", "one rank alone is even"),
    (lambda a: a["world"] == 1 and a["strategy"] in ("flag", "drop_last"), "one rank alone is even"),
    (lambda a: _uneven(a) and a["unit"] == "step", "with uneven inputs a sample is a whole run"),
    (lambda a: a["hook"] == "local" and (a["strategy"], a["zero"], a["cap_mib"], a["bucket_view"], a["settings"])
     != ("plain", "off", 0.0, False, "default"), "without communication only the bare step is measured"),
    (lambda a: a["hook"] == "no_sync" and (a["strategy"], a["zero"], a["unit"]) != ("plain", "off", "step"),
     "without communication only the bare step is measured"),
    (lambda a: _uneven(a) and a["strategy"] == "plain" and a["hook"] != "local",
     "uneven inputs need a strategy"),
    (lambda a: a["unit"] == "epoch" and a["strategy"] in ("throwing", "after_join"), "measured step by step only"),
    (lambda a: a["unit"] == "step" and a["strategy"] == "drop_last", "with even inputs nothing is dropped"),
    (lambda a: _uneven(a) and a["skew_fraction"] == 1 and a["strategy"] in ("flag", "drop_last"),
     "nothing would be trained"),
    (lambda a: a["hook"] in OVERLAPPED and a["zero"] != "on", "the overlap hooks step a ZeRO"),
    (lambda a: a["hook"] in OVERLAPPED and a["strategy"] != "plain", "the overlapped step is measured on even inputs"),
    (lambda a: a["shard_buckets"] and a["hook"] not in OVERLAPPED, "only the overlap hooks shard buckets"),
    (lambda a: a["subject"] == "torch" and a["hook"].startswith("reduce_scatter"), "torch has no such hook"),
    (lambda a: a["subject"] == "impl" and a["settings"] == "best", "impl always copies gradients bucket by bucket"),
    (lambda a: a["workload"] in SPARSE and (a["optimizer"] != "sgd" or a["zero"] != "off"),
     "sparse gradients go with plain SGD only"),
)  # fmt: skip
