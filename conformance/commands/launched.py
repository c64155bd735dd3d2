"""``python -m conformance run`` under a launcher: rank 0 drives, the other places serve as its agents.

A run has the world of the launcher; ``--worlds`` may ask for smaller ones, which take the first places. Every run of a
check still has fresh processes of its own, so that a hang or crash of a check is an outcome and not the job's end.
"""

from __future__ import annotations

import sys
from argparse import Namespace

from ..bad_input import BadInput
from ..engine.judgement import INTERNAL, OK
from ..engine.request import numbers
from ..ranks.launched import led, serve
from ..ranks.place import Place, placed


def run(given: Namespace) -> int:
    """Run here, or do what the launcher's place asks; returns the exit status."""
    from .run import run as here

    place = placed()
    if place is None or given.dry_run:
        return here(given) if place is None or place.rank == 0 else OK
    if place.rank:
        return OK if serve(place, "conformance") else INTERNAL
    return _drive(given, place)


def _drive(given: Namespace, place: Place) -> int:
    from .run import run as here

    if given.worlds is None and given.schedule is None:
        given.worlds = str(place.world)
    if given.worlds is not None and max(numbers(given.worlds)) > place.world:
        raise BadInput(f"--worlds {given.worlds}: the launcher gave {place.world} ranks; ask for no more than that")
    given.jobs = "1"  # every place takes part in every run
    with led(place) as agent_group:
        status = here(given, agent_group)
    if agent_group.lost:
        print(f"conformance: {agent_group.lost}. What was finished before is recorded.", file=sys.stderr)
        return INTERNAL
    return status
