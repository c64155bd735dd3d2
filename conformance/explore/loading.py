"""Makes a module of a program's text, with the names of a subject in it."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import pickle
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward as attach
from torch.utils.checkpoint import checkpoint

from ..fixtures import groups
from ..subjects import Subject

#: Under which it is imported, so that what it defines can be pickled, and placed as the suite's own code is.
NAME = "conformance.explored_program"

SUBJECTS_NAMES = (
    "DistributedDataParallel", "Join", "Joinable", "JoinHook", "ZeroRedundancyOptimizer",
    "hook_with_zero_step_interleaved", "hook_with_zero_step", "BuiltinCommHookType", "default_hooks",
    "powerSGD_hook", "post_localSGD_hook", "_BufferCommHookLocation", "_MixedPrecision",
)  # fmt: skip


@contextlib.contextmanager
def loaded(text: str, subject: Subject | None) -> Iterator[Any]:
    """The program's module, importable while it is in use; without a subject only its model can be used.

    What it does to the environment lasts as long.
    """
    module, before = ModuleType(NAME), dict(os.environ)
    given = {
        "contextlib": contextlib, "copy": copy, "dataclasses": dataclasses, "os": os, "pickle": pickle, "torch": torch,
        "dist": dist, "nn": nn, "checkpoint": checkpoint, "attach": attach, "unnamed_group": unnamed_group,
    }  # fmt: skip
    vars(module).update(given)
    vars(module).update({name: object if subject is None else getattr(subject, name) for name in used_names(text)})
    if subject is not None:
        sys.modules[NAME] = module
    try:
        exec(compile(text, NAME, "exec", dont_inherit=True), vars(module))
        yield module
    finally:
        if subject is not None:
            sys.modules.pop(NAME, None)
            os.environ.clear()
            os.environ.update(before)


def used_names(text: str) -> list[str]:
    """The subject's names that occur in a text."""
    return [name for name in SUBJECTS_NAMES if re.search(rf"\b{name}\b", text)]


def unnamed_group(members: list[int]) -> Any:
    """A new group of these ranks that overlap hooks accept."""
    groups.ensure_named()
    return dist.new_group(members, backend=groups.NAME)
