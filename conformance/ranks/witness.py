"""The witness: from the collective traces of all ranks, the first collective at which they part, as one sentence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from .outcomes import Died, Event, Finished, Hung, Outcome, Raised

_ONE_TO_ONE = ("send", "recv", "recv_anysource")  # not the whole group's
_SIZES_MAY_DIFFER = ("all_to_all", "all_to_all_single", "all_gather", "all_gather_coalesced")


def witness(outcomes: Sequence[Outcome]) -> str:
    """What went wrong between the ranks, as far as their recorded collectives tell."""
    parted = first_difference(outcomes)
    if parted:
        return parted
    stuck = {rank: outcome.trace for rank, outcome in enumerate(outcomes) if isinstance(outcome, Hung)}
    return f"The recorded collectives do not differ; {_where(stuck)}." if stuck else ""


def first_difference(outcomes: Sequence[Outcome]) -> str:
    """The first collective that is not the same on all ranks of its group; empty if there is none.

    Where nothing is known to be running it is only said what each started.
    """
    traces = [outcome.trace for outcome in outcomes]
    for name, members in _groups(traces):
        mine = {rank: _on(traces[rank], name, members) for rank in members if rank < len(traces)}
        for index in range(max(len(events) for events in mine.values())):
            here = {rank: events[index] for rank, events in mine.items() if index < len(events)}
            if len({_signature(event) for event in here.values()}) > 1:
                return _differing(name, index, here)
            if len(here) < len(mine):
                return _missing(name, index, here, mine, outcomes)
    return ""


def _groups(traces: Sequence[Sequence[Event]]) -> list[tuple[str, tuple[int, ...]]]:
    """Every group that occurs, those in which somebody still waits first, the default group before others."""
    waits: dict[tuple[str, tuple[int, ...]], bool] = {}
    for trace in traces:
        for event in trace:
            if event.op not in _ONE_TO_ONE:
                key = (event.group, event.ranks)
                waits[key] = waits.get(key, False) or not event.done
    return sorted(waits, key=lambda key: (not waits[key], key[0] != "default"))


def _on(trace: Iterable[Event], name: str, members: tuple[int, ...]) -> list[Event]:
    return [
        event for event in trace if event.op not in _ONE_TO_ONE and (event.group, event.ranks) == (name, members)
    ]


def _signature(event: Event) -> tuple[object, ...]:
    """What must be equal on all ranks. The layout of a tensor may differ, its number of elements may not."""
    numel = -1 if event.op in _SIZES_MAY_DIFFER else math.prod(event.shape)
    return (event.op, event.reduce_op, event.dtype, numel, event.source, event.target)


def _differing(name: str, index: int, here: dict[int, Event]) -> str:
    sides: dict[tuple[object, ...], list[int]] = {}
    for rank, event in here.items():
        sides.setdefault(_signature(event), []).append(rank)
    parts = []
    for ranks in sides.values():
        event = here[ranks[0]]
        waits = not all(here[rank].done for rank in ranks)
        parts.append(f"{_ranks(ranks)} {_verb(ranks, waits)} {event}")
    first = next(iter(sides.values()))
    return f"{parts[0]}, {_whose(first)} {_ordinal(index + 1)} on group {name}; " + "; ".join(parts[1:]) + " there."


def _verb(ranks: list[int], waits: bool) -> str:
    if waits:
        return "waits in" if len(ranks) == 1 else "wait in"
    return "went through"


def _missing(
    name: str,
    index: int,
    here: dict[int, Event],
    mine: dict[int, list[Event]],
    outcomes: Sequence[Outcome],
) -> str:
    """Some ranks stopped after ``index`` collectives, the others went on."""
    fewer = [rank for rank in mine if rank not in here]
    ahead = list(here)
    event = here[ahead[0]]
    waits = not all(one.done for one in here.values())
    count = f"{index} collective{'' if index == 1 else 's'}"
    tail = f"{_ranks(ahead)} {_verb(ahead, waits)} {_whose(ahead)} {_ordinal(index + 1)}: {event}"
    return f"{_ranks(fewer)} started {count} on group {name}{_ends(fewer, outcomes)}; {tail}."


def _whose(ranks: list[int]) -> str:
    return "its" if len(ranks) == 1 else "their"


def _ends(ranks: list[int], outcomes: Sequence[Outcome]) -> str:
    words = {_end(outcomes[rank]) for rank in ranks}
    return f" and then {words.pop()}" if len(words) == 1 else ""


def _end(outcome: Outcome) -> str:
    match outcome:
        case Finished():
            return "finished"
        case Raised(error=error):
            return f"raised {error.kinds[0]}"
        case Died(exit_code=code):
            return f"died (exit status {code})" if code >= 0 else f"died (signal {-code})"
        case Hung(trace=trace):
            waiting = [event for event in trace if not event.done]
            return f"waited elsewhere, in {waiting[-1]} on group {waiting[-1].group}" if waiting else "hung elsewhere"


def _where(stuck: dict[int, tuple[Event, ...]]) -> str:
    """What ranks that hang without any difference are doing."""
    parts = []
    for rank, trace in stuck.items():
        waiting = [event for event in trace if not event.done]
        last = f"in {waiting[-1]} on group {waiting[-1].group}" if waiting else "outside of any collective"
        parts.append(f"rank {rank} hangs {last}")
    return "; ".join(parts) + " (see the stacks)"


def _ranks(ranks: list[int]) -> str:
    names = [str(rank) for rank in ranks]
    return f"rank {names[0]}" if len(names) == 1 else f"ranks {', '.join(names[:-1])} and {names[-1]}"


def _ordinal(number: int) -> str:
    if 10 <= number % 100 <= 20:
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"
