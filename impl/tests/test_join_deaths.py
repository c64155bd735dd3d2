"""A rank that is killed or freezes without a word, in a context or outside: its peers name it, and never each other."""

import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from impl import DistributedDataParallel, Join, ZeroRedundancyOptimizer
from impl.comm.guard import DETECTION
from impl.ddp.iteration import Iteration
from impl.tests.comm_hook_ranks import _starting

pytestmark = pytest.mark.slow

_DEADLINE_S = 120.0
#: silence after which a rank counts as frozen here
_DETECTION_S = "2"


def die(kind):
    if "store" in kind:
        time.sleep(2)  # the others have met by then, and need the store no more to notice
    if kind == "exits":
        os._exit(1)
    os.kill(os.getpid(), signal.SIGSTOP if "freezes" in kind else signal.SIGKILL)
    time.sleep(60)


def die_as_a_shadow(kind, zero):
    """From now on: at the second act that this rank shadows."""
    acts = []

    def dying(right):
        def act(*args):
            acts.append(args)
            if len(acts) == 3:
                die(kind)
            return right(*args)

        return act

    Iteration.shadow = dying(Iteration.shadow)
    if zero is not None:
        zero._joining.shadow_step = dying(zero._joining.shadow_step)


def train(rank, world, kind, where, with_zero, dying):
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model = DistributedDataParallel(net, bucket_cap_mb=1e-5)
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1) if with_zero else None
    inputs = {"shadowing": 6, "alone": 2}.get(where, 6)
    if rank == dying:
        inputs = {"shadowing": 2, "alone": 5}.get(where, 3)
        if where == "shadowing":
            die_as_a_shadow(kind, zero)
    joined = Join([model, zero] if with_zero else [model], enable="outside" not in where)
    with joined:
        for iteration in range(inputs):
            model.zero_grad()
            out = model(torch.ones(1, 2))
            if rank == dying and iteration == inputs - 1 and "in its backward" in where:
                net[1].weight.register_hook(lambda _: die(kind))
            out.sum().backward()
            if with_zero:
                zero.step()
        if rank == dying and where in ("live", "alone", "outside"):
            die(kind)


def in_process_of_rank_0(folder, rank):
    """The store as it is without a launcher."""
    port = Path(folder, "port")
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port.with_suffix(".new").write_text(str(store.port))
        port.with_suffix(".new").rename(port)
        return store
    while not port.exists():
        time.sleep(0.01)
    return dist.TCPStore("127.0.0.1", int(port.read_text()), is_master=False, wait_for_workers=False)


def work(folder, rank, world, *how):
    torch.set_num_threads(1)
    os.environ[DETECTION] = _DETECTION_S
    store = in_process_of_rank_0(folder, rank) if "store" in how[0] else dist.FileStore(f"{folder}/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=_DEADLINE_S))
    try:
        train(rank, world, *how)
        told = "nothing happened"
    except BaseException as error:
        told = "\n".join([str(error), *getattr(error, "__notes__", ())])
    Path(folder, str(rank)).write_text(json.dumps(told))
    os._exit(0)  # at once: the others lose this rank, too


def told_by(folder, world, *how):
    """What each rank raised; None for the one that died."""
    ranks = [_starting.Process(target=work, args=(folder, rank, world, *how), daemon=True) for rank in range(world)]
    for process in ranks:
        process.start()
    end = time.monotonic() + _DEADLINE_S
    try:
        for rank, process in enumerate(ranks):
            if "freezes" in how[0] and how[-1] == rank:
                continue
            process.join(max(end - time.monotonic(), 0))
            assert process.exitcode is not None, "a rank still waits"
    finally:
        for process in ranks:
            process.kill()
    files = [Path(folder, str(rank)) for rank in range(world)]
    return [json.loads(file.read_text()) if file.exists() else None for file in files]


#: kind of death, world, where, with ZeRO, which rank; any two choices meet
CELLS = [
    ("killed", 2, "live", False, 1), ("exits", 2, "shadowing", True, 0), ("killed", 2, "alone", True, 1),
    ("exits", 2, "in its backward", False, 0),
    ("killed", 3, "live", True, 0), ("exits", 3, "live", False, 1), ("exits", 3, "shadowing", False, 2),
    ("killed", 3, "shadowing", True, 1), ("exits", 3, "alone", False, 0), ("killed", 3, "alone", True, 2),
    ("killed", 3, "in its backward", False, 2), ("exits", 3, "in its backward", True, 1),
    ("exits", 4, "live", True, 3), ("killed", 4, "shadowing", False, 0), ("killed", 4, "alone", False, 1),
    ("exits", 4, "in its backward", True, 2), ("killed", 4, "in its backward", False, 0),
    ("exits", 4, "alone", True, 3),
    ("killed", 3, "outside", False, 0), ("exits", 3, "outside, in its backward", True, 2),
    ("killed", 4, "outside, in its backward", False, 1), ("killed", 2, "outside", True, 1),
    ("freezes", 2, "live", False, 0), ("freezes", 3, "outside", False, 1), ("freezes", 3, "in its backward", True, 2),
    ("freezes", 3, "outside, in its backward", True, 0), ("freezes", 3, "shadowing", False, 1),
    ("freezes", 4, "alone", False, 3),
    ("freezes with the store", 3, "live", False, 0), ("freezes with the store", 2, "in its backward", True, 0),
    ("freezes with the store", 3, "alone", False, 0), ("freezes with the store", 3, "outside", False, 0),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "world", "where", "with_zero", "dying"), CELLS)
def test_survivors_name_the_rank_that_died(tmp_path, kind, world, where, with_zero, dying):
    told = told_by(str(tmp_path), world, kind, where, with_zero, dying)
    assert told[dying] is None
    for rank, text in enumerate(told):
        if rank != dying:
            assert f"rank {dying} has stopped answering" in text, told
            assert "left the join context" not in text
