"""Every call of the hook is given a copy of the state."""

import contextlib
import copy
from typing import Any

from impl.ddp.traffic import Traffic

from ..planting import swap

CLAUSES = ("COMM-012",)


def plant() -> None:
    def start(self: Traffic, hook: tuple[Any, Any], *rest: Any, **more: Any) -> Any:
        state, function = hook
        with contextlib.suppress(TypeError):  # a process group, say, cannot be copied
            state = copy.copy(state)
        return right(self, (state, function), *rest, **more)

    right = swap(Traffic, "_start_hook", start)
