"""What ``torch.compile`` leaves as it is.

Imported when code that is being compiled first comes by, because the compiler takes seconds to import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


@torch.compiler.disable
def call_uncompiled(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What ``function`` returns; nothing of it is compiled."""
    return function(*args, **kwargs)
