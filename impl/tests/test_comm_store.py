"""A store whose host has frozen is waited for only so long, and then counts as gone; who waits keeps nobody else."""

import threading
import time
from datetime import timedelta

import pytest
import torch.distributed as dist

from impl.comm import store as stores
from impl.comm.store import StoreWithDeadline


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


def test_a_connection_of_its_own_is_answered_while_the_program_waits_in_the_store(monkeypatch):
    shared = dist.PrefixStore("joinery", dist.TCPStore("localhost", 0, 1, True, timeout=timedelta(seconds=5)))
    monkeypatch.setattr(stores, "shared_by", lambda _group: shared)
    own, heard = stores.of_own(None), []
    waiting = threading.Thread(target=lambda: heard.append(shared.get("said")), daemon=True)
    waiting.start()
    time.sleep(0.3)
    own.set("said", "yes")
    waiting.join(20)
    assert heard == [b"yes"]
