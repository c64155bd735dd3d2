"""The pytest plugin that runs checks over subjects, backends and worlds. (First cut.)"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from typing import Any

import pytest

from .checking import Check, Ranks
from .ranks import Cluster


def pytest_addoption(parser: Any) -> None:
    group = parser.getgroup("conformance")
    group.addoption("--subjects", default="impl,torch")
    group.addoption("--backend", default="gloo")
    group.addoption("--worlds", default="1,2,3,4")
    group.addoption("--select", default="*")


def pytest_generate_tests(metafunc: Any) -> None:
    if "ranks" not in metafunc.fixturenames:
        return
    about: Check = metafunc.function.check
    asked = [int(w) for w in metafunc.config.getoption("worlds").split(",")]
    cases = [
        (subject, metafunc.config.getoption("backend"), world)
        for subject in metafunc.config.getoption("subjects").split(",")
        for world in about.worlds
        if world in asked
    ]
    metafunc.parametrize("ranks", cases, indirect=True, ids=["-".join(map(str, case)) for case in cases])


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    patterns = config.getoption("select").split(",")
    items[:] = [
        item
        for item in items
        if hasattr(item.function, "check") and any(fnmatch(c, p) for c in item.function.check.clauses for p in patterns)
    ]


@pytest.fixture(scope="session")
def cluster(request: Any) -> Iterator[Cluster]:
    made = Cluster(request.config.getoption("backend"))
    yield made
    made.close()


@pytest.fixture
def ranks(request: Any, cluster: Cluster) -> Ranks:
    subject, backend, world = request.param
    return Ranks(cluster, subject, backend, world, request.function.check.deadline_s)
