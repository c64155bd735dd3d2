"""A store whose host has frozen is waited for only so long, and then counts as gone; who waits keeps nobody else."""

import threading
import time
from datetime import timedelta

import pytest
import torch.distributed as dist

from impl.comm import store as stores
from impl.comm.store import StoreWithDeadline
from impl.tests.comm_hook_ranks import run_on_ranks


class Frozen(dist.HashStore):
    """Answers nothing from now on."""

    def __init__(self):
        super().__init__()
        self.asked = 0
        self.thawed = threading.Event()

    def check(self, keys):
        self.asked += 1
        assert self.thawed.wait(60)
        return super().check(keys)


def test_a_frozen_store_is_waited_for_once():
    frozen = Frozen()
    store = StoreWithDeadline(frozen, 0.2)
    for _ in range(2):
        with pytest.raises(dist.DistStoreError, match="has not answered"):
            store.check(["key"])
    assert frozen.asked == 1
    frozen.thawed.set()


@pytest.mark.parametrize("limit_s", [60.0, None])
def test_what_a_store_answers_or_raises_is_handed_on(limit_s):
    store = StoreWithDeadline(dist.HashStore(), limit_s)
    store.set("key", "7")
    assert (store.get("key"), store.check(["key", "other"])) == (b"7", False)
    assert (store.add("sum", 2), store.add("sum", 3)) == (2, 5)
    store.delete_key("key")
    assert not store.check(["key"])
    with pytest.raises(TypeError):
        store.add("sum", "many")


def answer_who_waits(rank, _world):
    """A thread waits in the program's store for what this one says through a connection of its own."""
    group, heard, waiting = dist.group.WORLD, [], threading.Event()

    def wait():
        store = stores.shared_by(group)
        store.set_timeout(timedelta(seconds=5))
        waiting.set()
        heard.append(store.get(f"said by {rank}"))

    thread = threading.Thread(target=wait, daemon=True)
    own = stores.of_own(group)
    thread.start()
    waiting.wait()
    time.sleep(0.3)
    own.set(f"said by {rank}", "yes")
    thread.join(20)
    return heard


@pytest.mark.slow
def test_a_connection_of_its_own_is_answered_while_the_program_waits_in_the_store():
    assert run_on_ranks(answer_who_waits, 2) == [[b"yes"]] * 2
