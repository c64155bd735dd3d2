"""Explores many configurations on a few processes, each of which keeps one subject."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from ..defects.catalogue import Defect
from ..subjects import resolve
from .configurations import Configuration
from .search import Found


def explored(
    subject: str, configurations: Sequence[Configuration], *, jobs: int, seconds: float
) -> Iterator[tuple[Configuration, Found]]:
    """Each configuration with what was found, as it comes; those that the time does not suffice for are left out."""
    end = time.time() + seconds
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        asked = {pool.submit(_explore, subject, each, end): each for each in configurations}
        try:
            for future in as_completed(asked):
                found = future.result()
                if found is not None:
                    yield asked[future], found
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _explore(subject: str, configuration: Configuration, end: float) -> Found | None:
    if time.time() > end:
        return None
    from .running import explore

    return explore(resolve(subject), configuration, lambda: time.time() < end)


def violations_of(
    defects: Sequence[Defect], configurations: Sequence[Configuration], *, jobs: int, seconds: float
) -> Iterator[tuple[Defect, str]]:
    """Each planted defect with the first violation that it leads to; empty if none was found in its time."""
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        asked = {pool.submit(violation_of, each, configurations, seconds): each for each in defects}
        try:
            for future in as_completed(asked):
                yield asked[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def violation_of(defect: Defect, configurations: Sequence[Configuration], seconds: float) -> str:
    """Plant a defect in this process and explore until a property does not hold; what is wrong, and how.

    ``seconds`` are those of the processor, so that a busy machine finds no less.
    """
    from ..defects import planted
    from .running import explore

    end = time.process_time() + seconds
    try:
        subject = planted.subject(defect.attribute)
        for configuration in configurations:
            if time.process_time() > end:
                break
            found = explore(subject, configuration, lambda: time.process_time() < end)
            if found.violation:
                return found.violation
    finally:
        planted.clear()
    return ""
