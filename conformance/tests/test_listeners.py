"""What listens under a launcher listens at the launcher's address only, and the token does not outlive the meeting."""

import socket
import sys
import threading

import pytest

from conformance.ranks.agent_group import _arrivals, _listener, connect
from conformance.ranks.place import Place, listening

from .test_torchrun import free_port

pytestmark = pytest.mark.slow


def place(address="127.0.0.1", rank=0, port=0):
    return Place(rank, 2, address, port or free_port(), None, None, "environment", "0", store_is_there=False)


def is_reached(host, port):
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_the_listener_for_agents_on_this_machine_is_not_open_to_others(address):
    with _listener(place(address)) as listener:
        assert listener.getsockname()[0] in ("127.0.0.1", "::1")


def test_the_listener_never_opens_at_all_addresses_where_the_launchers_is_not_ours():
    """192.0.2.1 is nobody's: it is kept for documents."""
    try:
        listener = listening("192.0.2.1", 0)
    except OSError:  # no way leads there from here
        return
    with listener:
        assert listener.getsockname()[0] not in ("0.0.0.0", "::", "192.0.2.1")


needs_loopback_net = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only on Linux is all of 127.0.0.0/8 this machine"
)


@needs_loopback_net
def test_the_store_that_rank_0_keeps_listens_at_the_launchers_address_only():
    here = place()
    store = here.store()
    assert is_reached("127.0.0.1", here.port)
    assert not is_reached("127.0.0.2", here.port), "it listens at other addresses, too"
    del store


def test_a_store_port_that_is_taken_is_an_error_and_no_reason_to_listen_elsewhere():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        listening("127.0.0.1", taken.getsockname()[1])


def test_the_token_is_gone_from_the_store_once_all_agents_are_in():
    driver = place()
    store = driver.store()
    agents = []
    agent = threading.Thread(target=lambda: agents.append(connect(place(rank=1, port=driver.port))), daemon=True)
    agent.start()
    members = _arrivals(driver, store)
    agent.join(60)
    assert [member.rank for member in members] == [1]
    assert not store.check(["listener"])
    for end in [*agents, *(member.agent for member in members)]:
        end.close()
