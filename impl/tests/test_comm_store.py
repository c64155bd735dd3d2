"""A store whose host has frozen is waited for only so long, and then counts as gone; who waits keeps nobody else."""

import os
import signal
import subprocess
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


class Stopping(dist.HashStore):
    """Stops this process for a second while it asks."""

    def check(self, keys):
        subprocess.Popen(["/bin/sh", "-c", f"sleep 1; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.1)
        return super().check(keys)


def ask_while_stopped(_rank, _world):
    begun = time.monotonic()
    return StoreWithDeadline(Stopping(), 0.5).check(["key"]), time.monotonic() - begun > 0.9


@pytest.mark.slow
def test_time_in_which_this_process_is_stopped_is_no_silence_of_the_store():
    assert run_on_ranks(ask_while_stopped, 1) == [(False, True)]


@pytest.mark.parametrize("limit_s", [60.0, None])
def test_what_a_store_answers_or_raises_is_handed_on(limit_s):
    store = StoreWithDeadline(dist.HashStore(), limit_s)
    store.set("key", "7")
    assert (store.get("key"), store.check(["key", "other"])) == (b"7", False)
    assert [store.compare_set("first", "", word) for word in "ab"] == [b"a", b"a"]
    store.delete_key("key")
    assert not store.check(["key"])
    with pytest.raises(TypeError):
        store.set("key", 8)


def test_a_connection_of_its_own_is_answered_while_the_program_waits_in_the_store():
    shared = dist.PrefixStore("joinery", dist.TCPStore("localhost", 0, 1, True, timeout=timedelta(seconds=5)))
    own, heard = stores.of_own(shared), []
    waiting = threading.Thread(target=lambda: heard.append(shared.get("said")), daemon=True)
    waiting.start()
    time.sleep(0.3)
    own.set("said", "yes")
    waiting.join(20)
    assert heard == [b"yes"]
