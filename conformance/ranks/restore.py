"""Puts a rank's process back as it was, so that runs on a persistent pool do not see one another."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import warnings
from collections.abc import Iterator

import torch
import torch.distributed as dist


@contextlib.contextmanager
def everything_restored() -> Iterator[None]:
    """Restore what a run may change: environment, paths, warning filters, random states, torch's global switches.

    Modules that a run imported stay imported, and what it patched in them stays patched: a check that patches must
    undo it, or run on fresh ranks.
    """
    environ, path, cwd = dict(os.environ), list(sys.path), os.getcwd()
    filters = list(warnings.filters)
    seeds, torch_seeds = random.getstate(), torch.get_rng_state()
    switches = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads())
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environ)
        sys.path[:] = path
        os.chdir(cwd)
        warnings.filters[:] = filters  # type: ignore[index]
        random.setstate(seeds)
        torch.set_rng_state(torch_seeds)
        torch.set_default_dtype(switches[0])
        torch.set_grad_enabled(switches[1])
        torch.set_num_threads(switches[2])
        torch.use_deterministic_algorithms(deterministic)
        dist.set_debug_level_from_env()
