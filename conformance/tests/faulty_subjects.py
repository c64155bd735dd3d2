"""Subjects that meet the death of their peer each in a way of its own: what the fault matrix must tell apart."""

from __future__ import annotations

import atexit
import functools
import os
import time
import types

import torch
import torch.distributed as dist

from conformance.faults import group, promises
from conformance.faults.injecting import FAULT, read
from conformance.subjects import Subject, resolve


class Averaging(torch.nn.Module):
    """Averages each gradient as it comes; what a broken collective leads to is the subclass's idea."""

    def __init__(self, module, bucket_cap_mb=None, process_group=None):
        super().__init__()
        self.module = module
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(self.average)

    def forward(self, x):
        return self.module(x)

    over = False  # no further collective

    def average(self, parameter):
        try:
            if not self.over:
                dist.all_reduce(parameter.grad)
        except RuntimeError as error:
            self.broken(error)
        parameter.grad /= dist.get_world_size()

    def broken(self, error):
        peer = 1 - dist.get_rank()
        raise RuntimeError(f"rank {peer} has stopped answering in the reduction of a gradient") from error


class Hanging(Averaging):
    def broken(self, error):
        time.sleep(600)


class Going(Averaging):
    def broken(self, error):
        """Goes on with the gradients of this rank alone."""
        self.over = True


class Blaming(Averaging):
    def broken(self, error):
        raise RuntimeError(f"rank {dist.get_rank()} has stopped answering in the reduction of a gradient")


class Nameless(Averaging):
    def broken(self, error):
        raise RuntimeError("something went wrong with a gradient")


class Stageless(Averaging):
    def broken(self, error):
        raise RuntimeError(f"rank {1 - dist.get_rank()} has died")


class Late(Averaging):
    def broken(self, error):
        struck = read(group.current.folder / FAULT)["at"]
        time.sleep(max(0.0, struck + promises.SPEAKING_S + 0.8 - time.monotonic()))
        super().broken(error)


class Aborting(Averaging):
    def broken(self, error):
        os.abort()


class Lingering(Averaging):
    def broken(self, error):
        atexit.register(functools.partial(time.sleep, 600))
        super().broken(error)


def _subject(kind):
    hooks = types.SimpleNamespace(allreduce_hook=None)
    return Subject(kind.__name__, "0", {"DistributedDataParallel": kind, "default_hooks": hooks})


KINDS = {
    "told": Averaging, "hang": Hanging, "wrong": Going, "blames another": Blaming, "names nobody": Nameless,
    "unnamed stage": Stageless, "late": Late, "aborted process": Aborting, "left processes": Lingering,
}  # fmt: skip


_kept = []


def _leaking():
    """Ours, but each model keeps a pipe open and a tensor alive."""
    ours = resolve("impl")

    class Leaking(ours.DistributedDataParallel):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            _kept.append((os.pipe(), torch.zeros(1)))

    return Subject("leaking", "0", {**ours.names, "DistributedDataParallel": Leaking})


def __getattr__(name):
    if name == "leaking":
        return _leaking()
    if name in {kind.__name__.lower() for kind in KINDS.values()}:
        return next(_subject(kind) for kind in KINDS.values() if kind.__name__.lower() == name)
    raise AttributeError(name)
