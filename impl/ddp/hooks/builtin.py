"""The hooks that DDP knows by an enumeration rather than as functions."""

import enum
from typing import Any

from ...arguments import member
from .default_hooks import allreduce_hook, fp16_compress_hook
from .reduction import Hook


class BuiltinCommHookType(enum.Enum):
    """The built-in hooks; members and values as in ``torch.distributed.BuiltinCommHookType`` (COMM-011, 017, 018)."""

    ALLREDUCE = 1
    FP16_COMPRESS = 2

    def __str__(self) -> str:
        return f"BuiltinCommHookType.{self.name}"


_HOOKS: dict[BuiltinCommHookType, Any] = {
    BuiltinCommHookType.ALLREDUCE: allreduce_hook,
    BuiltinCommHookType.FP16_COMPRESS: fp16_compress_hook,
}


def builtin_hook(kind: Any) -> tuple[BuiltinCommHookType, Hook]:
    """The member that ``kind`` names (ours or torch's) and its hook, whose state is the DDP's group.

    Raises:
        TypeError: ``kind`` is no member of either enumeration.
    """
    found = member(BuiltinCommHookType, kind)
    if found is None:
        known = ", ".join(map(str, BuiltinCommHookType))
        raise TypeError(f"Built-in communication hook: expected one of {known}, got {kind!r}.")
    return found, _HOOKS[found]
