"""Hosts on one machine: what a network is, real bytes over it, links that are cut, and nothing left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from conformance.bad_input import BadInput
from conformance.hosts import Hosts, HostsFailed, Network, delay, rate, unavailable

from .test_runs_whole import marked, needs_proc, wait_for

pytestmark = pytest.mark.slow

HOME = Path(__file__).parents[2]
needs_hosts = pytest.mark.skipif(bool(unavailable()), reason=f"no hosts here: {unavailable()}")

MEET = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.full((3,), float(dist.get_rank() + 1))
dist.all_reduce(total)
sys.stdout.write(f"sum {total.tolist()} {sys.argv[1:]}\\n")
dist.destroy_process_group()
"""

#: receives what a peer sends for as long as it can, and says how many bytes came
LISTEN = """
import socket, sys
listener = socket.create_server(("0.0.0.0", 5000))
peer, _ = listener.accept()
peer.settimeout(60)
count = 0
while chunk := peer.recv(1 << 16):
    count += len(chunk)
open(sys.argv[1], "w").write(str(count))
"""
SEND = """
import socket, sys, time
for _ in range(200):
    try:
        peer = socket.create_connection(("10.77.0.1", 5000), timeout=60)
        break
    except OSError:
        time.sleep(0.05)
start = time.monotonic()
peer.sendall(bytes(int(sys.argv[2])))
peer.shutdown(socket.SHUT_WR)
peer.recv(1)
open(sys.argv[1], "w").write(str(time.monotonic() - start))
"""


@pytest.mark.parametrize(("text", "expected"), [("1gbit", 10**9), ("200Mbit", 2 * 10**8), ("2.5mbit", 2_500_000)])
def test_a_rate_has_a_unit(text, expected):
    assert rate(text) == expected


@pytest.mark.parametrize("text", ["200", "fast", "200mb", "", "-1gbit"])
def test_a_rate_without_a_unit_is_refused(text):
    with pytest.raises(BadInput, match="number with a unit"):
        rate(text)


def test_a_delay_has_a_unit():
    assert delay("200us") == pytest.approx(2e-4)
    with pytest.raises(BadInput, match="100us or 100ms"):
        delay("200")


@pytest.mark.parametrize(("network", "said"), [
    ({"hosts": 0, "rate_bps": 10**9}, "from 1 to 64"),
    ({"hosts": 500, "rate_bps": 10**9}, "from 1 to 64"),
    ({"hosts": 2, "rate_bps": 10**9, "racks": 3}, "every rack needs a host"),
    ({"hosts": 2, "rate_bps": 1}, "would not carry"),
])  # fmt: skip
def test_a_network_that_cannot_be_is_refused(network, said):
    with pytest.raises(BadInput, match=said):
        Network(**network)


def test_hosts_are_spread_over_racks_in_blocks():
    network = Network(hosts=5, rate_bps=10**9, racks=2)
    assert [network.rack_of(host) for host in range(5)] == [0, 0, 0, 1, 1]


def test_what_is_used_before_it_is_entered_says_so():
    with pytest.raises(HostsFailed, match="are not entered"):
        Hosts(Network(2, 10**9)).cut(0)


def command(*words):
    made = [sys.executable, "-m", "conformance", "hosts", *words]
    return subprocess.run(made, cwd=HOME, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(("words", "said"), [
    (("--rate", "1000", "--", "train.py"), "is not a number with a unit"),
    (("--hosts", "none", "--", "train.py"), "number of hosts 'none'"),
    (("--rate", "1gbit"), "say what to run"),
])  # fmt: skip
def test_bad_input_is_one_sentence_and_status_2(words, said):
    done = command(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@needs_hosts
def test_a_script_for_torchrun_runs_unchanged_on_three_hosts_of_two_racks(tmp_path):
    script = tmp_path / "meet.py"
    script.write_text(MEET)
    done = command("--hosts", "3", "--racks", "2", "--rate", "1gbit", "--", "torchrun", str(script), "--epochs", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum [6.0, 6.0, 6.0] ['--epochs', '2']") == 3


@needs_hosts
def test_the_exit_status_is_that_of_the_script(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("raise SystemExit(3)")
    assert command("--hosts", "2", "--", str(script)).returncode != 0


@needs_hosts
@pytest.mark.parametrize("late", ["", "50ms"])
def test_a_link_carries_its_rate_is_late_as_asked_can_be_slowed_cut_and_healed(tmp_path, late):
    def seconds(hosts, size, between=lambda: None):
        received, sent = tmp_path / "received", tmp_path / "sent"
        listener = hosts.start(0, [sys.executable, "-c", LISTEN, str(received)])
        sender = hosts.start(1, [sys.executable, "-c", SEND, str(sent), str(size)])
        between()
        assert hosts.wait([listener, sender], 120.0) == {listener: 0, sender: 0}
        assert received.read_text() == str(size)
        return float(sent.read_text())

    def cut_for_a_second():
        time.sleep(1.0)
        hosts.cut(1)
        time.sleep(1.0)
        hosts.heal(1)

    with contextlib.ExitStack() as stack:
        try:
            hosts = stack.enter_context(Hosts(Network.of(2, f"80mbit {late}")))
        except HostsFailed as error:
            if "a delay needs" not in str(error):
                raise
            pytest.skip(str(error))
        assert seconds(hosts, 1) >= (4 * delay(late) if late else 0.0)  # there and back, over two links each
        at_full_rate = seconds(hosts, 10_000_000)  # a second at 80 Mbit/s, less what the bucket lets through at once
        assert at_full_rate > 0.9
        hosts.limit(1, rate("8mbit"))
        assert seconds(hosts, 2_000_000) > 1.5
        hosts.limit(1, rate("80mbit"))
        seconds(hosts, 30_000_000, cut_for_a_second)  # all of it arrives all the same


@needs_hosts
def test_a_host_that_is_killed_ends_all_that_ran_on_it():
    with Hosts(Network(2, rate("1gbit"))) as hosts:
        sleeping = hosts.start(1, ["sleep", "600"])
        assert hosts.wait([sleeping], 0.2) == {}
        hosts.signal(1, signal.SIGKILL)
        assert hosts.wait([sleeping], 30.0) == {sleeping: -signal.SIGKILL}


@needs_hosts
@needs_proc
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_behind_when_the_command_ends_in_any_way(tmp_path, how):
    mark, temporary = uuid.uuid4().hex, tmp_path / "temporary"
    temporary.mkdir()
    script = tmp_path / "sleeps.py"
    script.write_text(f"import time; open({str(tmp_path / 'up')!r}, 'w').close(); time.sleep(600)")
    process = subprocess.Popen(
        [sys.executable, "-m", "conformance", "hosts", "--", str(script)], cwd=HOME,
        env={**os.environ, "JOINERY_TEST_MARK": mark, "TMPDIR": str(temporary)}, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for((tmp_path / "up").exists, 120)
        process.send_signal(how)
        process.wait(60)
    finally:
        process.kill()
    wait_for(lambda: marked(mark) == [], 60)
    assert how == signal.SIGKILL or list(temporary.iterdir()) == []
