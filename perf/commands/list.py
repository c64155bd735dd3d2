"""``python -m perf list``: the sweeps, the workloads and the axes that there are."""

from __future__ import annotations

from argparse import Namespace

from .. import workloads
from ..plan import sweep
from ..plan.axes import AXES, Axis


def listed(given: Namespace) -> int:  # noqa: ARG001
    print("sweeps:")
    for name in sweep.names():
        print(f"  {name:14} {sweep.load(name).title}")
    print("\nworkloads:")
    for name, about in workloads.KNOWN.items():
        print(f"  {name:14} {about}")
    print("\naxes:")
    for name, axis in AXES.items():
        print(f"  {name:14} {axis.about}\n{'':17}{_legal(axis)}")
    return 0


def _legal(axis: Axis) -> str:
    if axis.values:
        return " | ".join(str(value).lower() if isinstance(value, bool) else str(value) for value in axis.values)
    if axis.kind is str:
        return "impl, torch or package.module:attribute"
    return f"{axis.limits[0]:g} to {axis.limits[1]:g}"
