"""A mutant as a subject, for any command: the one that the environment variable CONFORMANCE_MUTANT names.

    CONFORMANCE_MUTANT='impl/join/session.py:Session.alone:comparison inverted:3' \\
        python -m conformance run --subject conformance.power.mutated:subject --select 'DDPJ-*'

It may name a plan in a file of JSON as well (``altered.load_plan``).
"""

from __future__ import annotations

import os

from ..subjects import Subject
from ..subjects import impl as ours
from . import altered, written
from .drawing import VARIABLE, Pool


def _made(identity: str) -> Subject:
    if identity.endswith(".json"):
        altered.load_file(identity)
        return _as_it_is()
    pool = Pool.of_impl()
    mutant = written.named(identity, pool.sources) if written.NAMED in identity else pool.named(identity)
    if mutant is None:
        raise ValueError(f"{VARIABLE}: there is no mutant {identity!r} of impl as it is now")
    altered.load({mutant.file: mutant.mutated})
    return _as_it_is()


def _as_it_is() -> Subject:
    right = ours.subject
    return Subject("mutant", right.version, right.names, right.lacks)


subject = _made(os.environ.get(VARIABLE, ""))
