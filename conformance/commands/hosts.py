"""``python -m conformance hosts``: run a training script on hosts of one machine, over a network of a chosen rate."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path

from ..bad_input import BadInput
from ..ending import terminated_like_interrupted
from ..engine.judgement import INTERRUPTED
from ..hosts import Hosts, HostsFailed, Network, delay, rate, unavailable

NOT_RUN = 2


def hosts(given: Namespace) -> int:
    """Run the command as torchrun would, one agent on each host; returns its exit status."""
    script = _script(given.script)
    if "TORCHELASTIC_RUN_ID" in os.environ or {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        raise BadInput("this process was started by a launcher, and hosts start one of their own: use one of the two")
    network = Network(
        _count(given.hosts, "hosts"), rate(given.rate), delay(given.delay) if given.delay else 0.0,
        _count(given.racks, "racks"), rate(given.uplink) if given.uplink else 0,
    )  # fmt: skip
    ranks = _count(given.ranks, "ranks")
    _ensure_there(script)
    why = unavailable()
    if why:
        raise BadInput(f"not run: {why}")
    print(f"conformance: {network}", file=sys.stderr)
    try:
        with terminated_like_interrupted(), Hosts(network) as running:
            return running.torchrun(script, ranks)
    except HostsFailed as error:
        raise BadInput(f"the hosts could not be had: {error}") from error
    except KeyboardInterrupt:
        return INTERRUPTED


def _count(text: str, what: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise BadInput(f"number of {what} {text!r}: give a whole number from 1 on")
    return int(text)


def _script(words: list[str]) -> list[str]:
    """What torchrun takes: a script with its arguments, or ``-m module``."""
    words = words[1:] if words[:1] == ["--"] else words
    if words and os.path.basename(words[0]) in ("torchrun", "python", "python3"):
        words = words[1:]
    if not words:
        raise BadInput("say what to run on the hosts: … --rate 1gbit -- train.py --epochs 2, or -- -m package.module")
    return words


def _ensure_there(script: list[str]) -> None:
    """Every host's agent would fail by itself, and torchrun's report would hide why. Options of torchrun's pass."""
    name = script[0]
    if name == "-m" and len(script) > 1 and not _is_module(script[1].partition(".")[0]):
        raise BadInput(f"there is no module {script[1]!r} to run on the hosts; correct its name, or set PYTHONPATH")
    if not name.startswith("-") and not Path(name).is_file():
        raise BadInput(f"there is no script {name!r} to run on the hosts; correct its path, or say -- -m MODULE")


def _is_module(name: str) -> bool:
    """Whether a module or package of this name, without dots, can be found."""
    return name.isidentifier() and find_spec(name) is not None
