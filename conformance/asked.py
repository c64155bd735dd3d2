"""What a run was asked for, checked before anything starts: subjects, backend, worlds, clauses, deviations."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .clauses import matches
from .deviations import Deviation, DeviationError, DeviationFile, built_in, load
from .subjects import Subject, SubjectError, is_built_in, resolve


class BadInput(ValueError):
    """Something that was asked for cannot be had; the text is one sentence for the user. Exit status 2."""


@dataclass(frozen=True)
class Asked:
    """Everything that a run is about."""

    subjects: dict[str, str]  # spec by the subject's own name, in the order asked
    versions: dict[str, str]  # version by name
    backend: str
    worlds: tuple[int, ...]
    select: tuple[str, ...]  # patterns of clause ids
    check: str = "*"  # pattern of check names
    deadline_s: float | None = None  # for one run of ranks; None: the cluster's own
    jobs: int = 1
    deviations: dict[str, tuple[Deviation, ...]] = field(default_factory=dict)  # by name of the subject


def numbers(text: str, what: str = "world") -> tuple[int, ...]:
    """Whole numbers above 0, separated by commas; doubles are dropped."""
    found: list[int] = []
    for part in words(text, what):
        if not part.isdecimal() or int(part) < 1:
            raise BadInput(f"{what} {part!r} is not a whole number above 0; give for example 1,2,3,4")
        found.append(int(part))
    return tuple(dict.fromkeys(found))


def words(text: str, what: str) -> tuple[str, ...]:
    """Words separated by commas; an empty one is refused."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise BadInput(f"{what} {text!r} has an empty part; separate several by single commas")
    return tuple(dict.fromkeys(parts))


def subjects(text: str) -> dict[str, tuple[str, Subject]]:
    """Specs separated by commas, as name -> (spec, subject)."""
    found: dict[str, tuple[str, Subject]] = {}
    for spec in words(text, "subject"):
        try:
            subject = resolve(spec)
        except SubjectError as error:
            raise BadInput(str(error)) from error
        if subject.name in found:
            other = found[subject.name][0]
            raise BadInput(f"subjects {other!r} and {spec!r} are both called {subject.name!r}; rename one")
        found[subject.name] = (spec, subject)
    return found


def backend_limit(backend: str) -> int | None:
    """The most ranks that a backend can give on this machine; None if there is no fixed limit."""
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        raise BadInput("this torch was built without torch.distributed; install one that has it")
    if ":" in backend:
        _import_backend(backend)
        return None
    if backend == "gloo" and dist.is_gloo_available():
        return None
    if backend == "nccl":
        if not dist.is_nccl_available():
            raise BadInput("backend 'nccl' is not built into this torch; use --backend gloo, or a CUDA build")
        if not torch.cuda.device_count():
            raise BadInput("backend 'nccl' needs a GPU for every rank and this machine has none; use --backend gloo")
        return torch.cuda.device_count()
    raise BadInput(f"unknown backend {backend!r}: use gloo, nccl, or package.module:name of one that you register")


def _import_backend(backend: str) -> None:
    module = backend.partition(":")[0]
    try:
        importlib.import_module(module)
    except Exception as error:  # somebody else's module may raise anything
        raise BadInput(f"backend {backend!r}: {module} cannot be imported: {type(error).__name__}: {error}") from error


def worlds(text: str | None, backend: str) -> tuple[int, ...]:
    """The world sizes to run at; without a wish: 1 to 4, as far as the backend can give them."""
    limit = backend_limit(backend)
    if text is None:
        return tuple(world for world in (1, 2, 3, 4) if limit is None or world <= limit)
    found = numbers(text)
    too_many = [world for world in found if limit is not None and world > limit]
    if too_many:
        raise BadInput(
            f"world {too_many[0]} needs more ranks than backend {backend!r} can give here ({limit}, one per GPU); "
            "ask for fewer, or use --backend gloo"
        )
    return found


def patterns(text: str, known: Iterable[str]) -> tuple[str, ...]:
    """Clause patterns, each of which must match something."""
    found = words(text, "clause pattern")
    known = list(known)
    for pattern in found:
        if not any(matches(clause, [pattern]) for clause in known):
            raise BadInput(f"clause pattern {pattern!r} matches nothing; `python -m conformance clauses` lists all")
    return found


def deviations(files: Sequence[str], specs: dict[str, str]) -> dict[str, tuple[Deviation, ...]]:
    """The deviations of every subject: the suite's own list for a built-in one, and those of the files."""
    try:
        found = {name: built_in(spec) if is_built_in(spec) else () for name, spec in specs.items()}
        for file in files:
            name, more = _whose(file, load(Path(file)), specs)
            found[name] += more
    except DeviationError as error:
        raise BadInput(str(error)) from error
    return found


def _whose(file: str, read: DeviationFile, specs: dict[str, str]) -> tuple[str, tuple[Deviation, ...]]:
    """The subject that a file of deviations is about: the one that it names, or the only one that it can mean."""
    if read.subject:
        if read.subject not in specs:
            raise BadInput(f"{file}: is about subject {read.subject!r}, which is not in this run ({', '.join(specs)})")
        return read.subject, read.deviations
    guests = [name for name, spec in specs.items() if not is_built_in(spec)]
    for names in (list(specs), guests):
        if len(names) == 1:
            return names[0], read.deviations
    raise BadInput(f"{file}: does not say whose deviations these are; put subject = \"name\" at its top")
