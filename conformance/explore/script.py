"""A program as a script that needs nothing but torch and the subject: its text, the ranks, what one process says."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path

from . import looking
from .loading import used_names
from .program import Program
from .source import source
from .tolerance import Tolerance

_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks"
#: the module in which torch has a name, and ours where that is not ``impl`` itself
_TORCHS = {
    "DistributedDataParallel": "torch.nn.parallel", "ZeroRedundancyOptimizer": "torch.distributed.optim",
    "BuiltinCommHookType": "torch.distributed",
    **dict.fromkeys(("Join", "Joinable", "JoinHook"), "torch.distributed.algorithms.join"),
    **dict.fromkeys(("_BufferCommHookLocation", "_MixedPrecision"), "torch.nn.parallel.distributed"),
    **dict.fromkeys(("default_hooks", "powerSGD_hook", "post_localSGD_hook"), _HOOKS),
    **dict.fromkeys(("hook_with_zero_step", "hook_with_zero_step_interleaved"), f"{_HOOKS}.ddp_zero_hook"),
}  # fmt: skip
_OURS = {
    **dict.fromkeys(("_BufferCommHookLocation", "_MixedPrecision", "BuiltinCommHookType"), "impl.ddp"),
    **dict.fromkeys(("default_hooks", "powerSGD_hook", "post_localSGD_hook"), "impl.ddp.hooks"),
}

RUN = """
def numbers(value):
    for each in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(each, (list, tuple)):
            yield from numbers(each)
        else:
            yield each


def form(value):
    return [form(each) for each in value] if isinstance(value, (list, tuple)) else type(value)


def apart(found, value):
    if isinstance(found, str) or isinstance(value, str) or found == value:
        return 0.0 if found == value else inf
    return inf if isnan(abs(found - value)) else abs(found - value)


def close(found, value, tolerance):
    if found == value or form(found) != form(value):
        return found == value
    if tolerance == inf:  # it has left the range of numbers, where rounding decides about everything
        return not all(isinstance(each, str) or isfinite(abs(each)) for each in numbers(found))
    return max(map(apart, numbers(found), numbers(value))) <= tolerance


def worst(found, value):
    if not isinstance(value, (list, tuple)) or form(found) != form(value):
        return found, value, ""
    pairs = list(zip(numbers(found), numbers(value)))
    place = max(range(len(pairs)), key=lambda number: apart(*pairs[number]))
    return *pairs[place], f": {apart(*pairs[place]):.3g} apart, number {place} of {len(pairs)}"


def work(rank, world, store, found):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=60))
    look = Look()
    try:
        train(rank, look)
        answer = {key: as_literals(value) for key, value in look.noted.items()}
    except Exception as error:
        answer = {("the end", "raised"): f"{type(error).__name__}: {error}"}
    found.put((rank, answer))
    found.close()
    found.join_thread()
    time.sleep(DEADLINE)  # leaving now would break the other ranks' connections


def main():
    context, wrong, missing = get_context("spawn"), False, set(EXPECTED)
    found = context.Queue()
    with tempfile.NamedTemporaryFile() as store:
        ranks = [context.Process(target=work, args=(r, WORLD, store.name, found), daemon=True) for r in range(WORLD)]
        for process in ranks:
            process.start()
        end = time.monotonic() + DEADLINE
        while missing:
            try:
                rank, noted = found.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                break
            missing.discard(rank)
            for key, value in EXPECTED.get(rank, {}).items():
                if not close(noted.get(key, "missing"), *value):
                    wrong = True
                    here, there, gap = worst(noted.get(key, noted), value[0])
                    print(f"rank {rank}, {key[0]}: {key[1]} is {here}, one process says {there}{gap}")
                    break
        for process in ranks:
            process.kill()
    for rank in sorted(missing):
        print(f"rank {rank} hangs, or died")
    print("DIFFERS" if wrong or missing else "AS ONE PROCESS", "with torch", torch.__version__)
    sys.exit(bool(wrong or missing))


if __name__ == "__main__":
    main()
"""

UNNAMED_GROUP = '''
def unnamed_group(members):
    """Gloo under another name: the overlap hooks refuse Gloo by its name."""
    if "gloo_unnamed" not in dist.Backend.backend_list:
        dist.Backend.register_backend("gloo_unnamed", dist.ProcessGroupGloo, devices=["cpu"])
    return dist.new_group(members, backend="gloo_unnamed")
'''


def script(program: Program, subject: str = "torch", found: str = "") -> str:
    """The whole script. Its last lines compare as ``judging`` does: every value has its tolerance beside it."""
    text = source(program)
    title = found.splitlines()[0][:110] if found else "A training program, compared with one process."
    title = title.replace("\\", "/").replace('"""', "'''")
    repeat = f"python -m conformance explore --subject {subject} --program '{program.json()}'"
    modules = {name: _OURS.get(name, "impl") if subject == "impl" else _TORCHS[name] for name in used_names(text)}
    names = [f"from {module} import {name}" for name, module in modules.items()]
    standard = ["import contextlib", "import copy", "import dataclasses", "import os", "import pickle",
                "import queue", "import sys", "import tempfile", "import time", "from datetime import timedelta",
                "from math import inf, isfinite, isnan, nan",
                "from multiprocessing import get_context"]  # fmt: skip
    torchs = ["import torch", "import torch.distributed as dist", "from torch import nn",
              "from torch.distributed.optim import _apply_optimizer_in_backward as attach",
              "from torch.utils.checkpoint import checkpoint"]  # fmt: skip
    look = inspect.getsource(looking).partition("class Look:")
    parts = [
        f'"""{title}\n\nRepeated by: {repeat}\n"""',
        "from __future__ import annotations",
        "\n".join(standard) + "\nfrom collections.abc import Iterator\nfrom typing import Any",
        "\n".join([*torchs, *names]),
        f"WORLD, DEADLINE = {program.world}, 60",
        "# by rank: what one process says, by moment and name, and how far off rounding may be\n"
        f"EXPECTED = {{\n{_expected(program)}}}",
        "",
        text,
        UNNAMED_GROUP.strip() + "\n\n" if "unnamed_group" in text else "",
        "class Look:" + look[2],
        RUN.strip(),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _expected(program: Program) -> str:
    lines, tolerance = [], Tolerance(program)
    for rank in tolerance.expected:
        lines.append(f"    {rank}: {{\n")
        for key, value, most in tolerance.compared(rank):
            lines.append(f"        {key!r}: ({looking.as_literals(value)!r}, {most:.4g}),\n")
        lines.append("    },\n")
    return "".join(lines)


def write(folder: Path, program: Program, subject: str, found: str) -> Path:
    """Write the script into a folder, under a name of its own."""
    name = hashlib.sha256(program.json().encode()).hexdigest()[:8]
    path = folder / f"{name}.py"
    path.write_text(script(program, subject, found), encoding="utf-8")
    return path
