"""Defective subjects by name: ``conformance.defects.planted:<area>__<topic>__<name>`` plants a defect.

At most one defect is planted in a process; asking for another one takes the former out. The files are those of this
folder, or of the one that the environment variable CONFORMANCE_DEFECTS names (so that it reaches the ranks too).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from ..subjects import Subject
from ..subjects import impl as ours
from . import catalogue, planting

FOLDER = "CONFORMANCE_DEFECTS"
_current: tuple[str, Subject] | None = None


def __getattr__(attribute: str) -> Any:
    if attribute.startswith("__") or "__" not in attribute:
        raise AttributeError(attribute)
    return subject(attribute)


def subject(attribute: str) -> Subject:
    """Plant the defect, unless it is planted already, and return our implementation as it is then."""
    global _current
    if _current is None or _current[0] != attribute:
        clear()
        area, module, name = attribute.split("__", 2)
        try:
            _plant(area, module, name)()
            if not planting.changed():
                raise planting.PlantError("it replaced nothing through edit, swap or override")
        except BaseException:
            planting.undo()
            raise
        right = ours.gather()
        _current = (attribute, Subject(f"{area}/{name}", right.version, right.names, right.lacks))
    return _current[1]


def clear() -> None:
    """Take out what is planted."""
    global _current
    _current = None
    planting.undo()


def _plant(area: str, module: str, name: str) -> Callable[[], None]:
    """The function that plants a defect; its module is loaded anew."""
    path = Path(os.environ.get(FOLDER, catalogue.HERE)) / area / f"{module}.py"
    spec = spec_from_file_location(f"{__package__}.{area}.{module}", path)
    if spec is None or spec.loader is None or not path.exists():
        raise planting.PlantError(f"there is no planted defect {area}/{name}")
    loaded = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(loaded)
    plant: Callable[[], None] = getattr(loaded, name)
    return plant
