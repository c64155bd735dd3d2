"""What paced cells over a network answer: which steps there are, what they are held against, and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..measure.rows import OK, Row
from ..plan.axes import OVERLAPPED
from ..workloads import COUNTS
from . import noise
from .board import Board, Measured
from .intervals import Interval
from .ratio import UNCLEAR, Ratio, median_ns, ratio

#: What a step is called, by hook and ZeRO.
STEPS = {
    ("none", "off"): "DDP", ("none", "on"): "DDP, then ZeRO", ("none", "views"): "DDP, then ZeRO (views)",
    ("sequential", "on"): "sequential hook", ("interleaved", "on"): "interleaved hook",
    ("reduce_scatter", "on"): "reduce-scatter hook",
    ("reduce_scatter_interleaved", "on"): "reduce-scatter, interleaved",
}  # fmt: skip
_MODELS = {"resnet50": "ResNet-50", "bert": "BERT-base", "gpt2": "GPT-2 small", "dlrm": "DLRM"}


def is_paced(group: Measured) -> bool:
    return bool(group.axes["workload"] == "paced")


def steps(made: Board) -> list[Measured]:
    """The groups of paced steps on even inputs that have a sound one, the fewest hosts first."""
    sound = [group for group in even_steps(made) if any(row["status"] == OK and step_of(row) for row in group.rows)]
    return [group for group in sound if is_paced(group)]


def even_steps(made: Board) -> list[Measured]:
    """The groups of steps on even inputs that are paced or go over a network, the fewest hosts first."""
    found = [
        group for group in made.groups
        if (is_paced(group) or group.axes["network"]) and group.axes["world"] > 1
        and (group.axes["unit"], group.axes["skew"]) == ("step", "even")
    ]  # fmt: skip
    return sorted(found, key=lambda group: (group.axes["world"], group.axes["pace"]))


def step_of(row: Row) -> str:
    """What a row's step is called; empty for what is no plain step."""
    axes = row["axes"]
    plain = axes["strategy"] == "plain" and not (axes["bucket_view"] or axes["shard_buckets"])
    return STEPS.get((axes["hook"], axes["zero"]), "") if plain else ""


def setting(axes: dict[str, Any], hosts: bool = True) -> str:
    """Model, size, pace, network and perhaps hosts of a group, for a title."""
    model = _MODELS.get(axes["size"], "8 even layers") if axes["workload"] == "paced" else axes["workload"]
    size = f"{axes['size']} parameters" if axes["size"] in COUNTS else ""
    place, pace = "on GPUs" if axes["size"] == "gpu" else "", f"pace {axes['pace']:g}" if axes["pace"] != 1 else ""
    words = [model, size, place, pace]
    words += [f"{axes['world']} {'hosts' if axes['network'] else 'ranks'}" if hosts else "", axes["network"]]
    return ", ".join(word for word in words if word)


def to_communication(group: Measured) -> float | None:
    """Compute over what an all-reduce of the gradients takes at the measured rate; None where that is not known."""
    for row in group.rows:
        facts = row["derived"]
        if row["status"] == OK and {"compute_ns", "link_bytes_per_s", "parameter_bytes"} <= facts.keys():
            world: int = row["axes"]["world"]
            sent = 2 * (world - 1) / world * float(facts["parameter_bytes"])
            sending_ns: float = sent / float(facts["link_bytes_per_s"]) * 1e9
            return float(facts["compute_ns"]) / sending_ns
    return None


def fastest(rows: Iterable[Row]) -> Row | None:
    """The sound row of the shortest median."""
    return min((row for row in rows if row["status"] == OK), key=median_ns, default=None)


def verdict_on(found: Ratio, said: str) -> str:
    """A ratio and what it allows to say, told together with others (``noise.verdicts``)."""
    return f"{found} ({'cannot tell' if said == UNCLEAR else said})"


def cap(row: Row) -> str:
    """A row's bucket cap."""
    return f"{row['axes']['cap_mib']:g} MiB" if row["axes"]["cap_mib"] else "DDP's own cap"


def ms(found: Interval) -> str:
    """A time of so many nanoseconds, with its interval."""
    point, low, high = (f"{round(value / 1e6, 1) + 0.0:.1f}" for value in (found.point, found.low, found.high))
    return f"{point} ms [{low}, {high}]" if found.known else f"{point} ms (too few rounds for an interval)"


# -- sentences


def of_floor(groups: Sequence[Measured], subject: str) -> list[str]:
    """The best overlapped step against DDP alone, and DDP against its floor, of every group."""
    found: list[tuple[Measured, Row, Row | None]] = []
    for group in groups:
        alone = fastest(row for row in group.find(subject=subject, hook="none", zero="off", strategy="plain"))
        if alone is not None:
            best = fastest(row for row in group.find(subject=subject) if row["axes"]["hook"] in OVERLAPPED)
            found.append((group, alone, best))
    overlaps = [(ratio(best, alone), noise.of_group(group.rows)) for group, alone, best in found if best is not None]
    verdicts = iter(zip(overlaps, noise.verdicts(overlaps), strict=True))
    said = []
    for group, alone, best in found:
        sentence = f"{setting(group.axes)}: {subject}'s DDP takes {median_ns(alone) / 1e6:.0f} ms"
        floor = alone["derived"].get("floor_ns")
        sentence += f", {median_ns(alone) / floor:.2f} of its floor" if floor else ""
        empty = alone["derived"].get("empty_ns")
        sentence += f" (of which the machine adds {empty / 1e6:.1f} ms: an empty step)" if empty else ""
        if best is not None:
            (over, _), word = next(verdicts)
            sentence += f"; the best overlap ({step_of(best)}, {cap(best)}) takes {verdict_on(over, word)} of that"
        said.append(f"{sentence}.")
    return said
