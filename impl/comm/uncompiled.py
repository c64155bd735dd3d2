"""What ``torch.compile`` leaves as it is.

Imported when code that is being compiled first comes by, because the compiler takes seconds to import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


@torch.compiler.disable
def as_it_is(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What ``function`` returns, of which nothing is compiled."""
    return function(*args, **kwargs)
