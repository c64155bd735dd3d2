"""What a subject may declare: the names that checks ask for, what they stand for, and what is a slip of the pen."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

_CLASSES = ("Joinable", "JoinHook", "PeerFailed", "CollectivesDiffer")  # which checks inherit from or catch
_CALLED = (
    "Join", "_JoinConfig", "DistributedDataParallel", "_DDPJoinHook", "_MixedPrecision", "_BufferCommHookLocation",
    "_dump_DDP_relevant_env_vars", "GradBucket", "BuiltinCommHookType", "DDPCommHookType", "register_ddp_comm_hook",
    "ZeroRedundancyOptimizer", "_ZeROJoinHook", "hook_with_zero_step", "hook_with_zero_step_interleaved", "regroup",
)  # fmt: skip
_MODULES = (
    "join", "ddp", "zero", "ddp_zero_hook", "default_hooks", "debugging_hooks", "powerSGD_hook", "post_localSGD_hook",
    "quantization_hooks", "optimizer_overlap_hooks",
)  # fmt: skip
#: of these, what no document promises
EXTENSIONS = ("PeerFailed", "CollectivesDiffer", "regroup")
#: what checks of the suite ask a subject for; any other name is for somebody's own checks
NAMES = (*_CLASSES, *_CALLED, *_MODULES)
#: what checks ask for with ``subject.require``
FEATURES = ("process groups written in Python", "recorded collectives", "pickling")
_OTHERS = ("register_comm_hook", "joinable")  # a method and a keyword of torch's that resemble one of the names
_SPOKEN = {"DDP": "DistributedDataParallel", "ZeRO": "ZeroRedundancyOptimizer"}
_LIKE, _VERY_LIKE = 0.7, 0.85  # shares of letters in common; ``lacks`` may hold keywords and methods of any name


def fault(name: str, version: object, names: Mapping[Any, Any], lacks: Mapping[Any, Any]) -> str:
    """What is wrong with a declaration, and what to do; empty if nothing is."""
    if not isinstance(version, str):
        return f"the version of subject {name} must be a text, for example {str(version)!r}"
    for key in (*names, *lacks):
        if not isinstance(key, str):
            return f"subject {name} declares {key!r}, which is no name: write it as a text"
    for key, reason in lacks.items():
        if not isinstance(reason, str):
            return f"lacks of subject {name} must give a reason for {key!r} as a text, not {reason!r}"
    for key, value in names.items():
        if key in NAMES and (wanted := _wanted(key, value)):
            return f"{key} of subject {name} must be {wanted}, not {value!r}; what you do not have, name in lacks"
    for where, keys, meant in (("names", names, _meant), ("lacks", lacks, _meant_by_lacks)):
        for key in keys:
            if found := meant(key):
                return f"{where} of subject {name} hold {key!r}, which no check asks for; did you mean {found!r}?"
    return ""


def _wanted(key: str, value: Any) -> str:
    """What a name must stand for, if the value is nothing of the kind."""
    if key in _CLASSES:
        return "" if isinstance(value, type) else "a class"
    if key in _CALLED:
        return "" if callable(value) else "a class or a function"
    return "a module" if value is None or isinstance(value, bool | int | float | str | bytes) else ""


def _meant(key: str) -> str:
    """The name that an unknown one resembles, whatever its case."""
    if key in NAMES or key in _SPOKEN:
        return _SPOKEN.get(key, "")
    folded = {known.lower(): known for known in reversed(NAMES)}
    return folded.get(next(iter(get_close_matches(key.lower(), folded, 1, _LIKE)), ""), "")


def _meant_by_lacks(key: str) -> str:
    """The same for what is lacking, where only a slip of the pen is taken for one."""
    known = (*NAMES, *FEATURES)
    return "" if key in (*known, *_OTHERS) else next(iter(get_close_matches(key, known, 1, _VERY_LIKE)), "")
