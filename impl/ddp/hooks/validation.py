"""What may be registered as a communication hook: checked when it is registered, not when it is first called."""

import inspect
import re
from typing import Any, NoReturn, get_args, get_origin

import torch
import torch.distributed as dist

from ..buckets import GradBucket as OwnGradBucket
from ..log import Fail
from .reduction import GradBucket, function_of

_BFLOAT16_HOOKS = ("bf16_compress_hook", "bf16_compress_wrapper_hook")
_BUCKET_TEXT = re.compile(r"([\w.]+\.)?GradBucket")
_FUTURE_TEXT = re.compile(r"([\w.]+\.)?Future\[([\w.]+\.)?Tensor\]")


def _throw(kind: type[Exception], text: str) -> NoReturn:
    raise kind(text)


def check_comm_hook(hook: Any, refuse: Fail = _throw) -> None:
    """Raise if ``hook`` cannot be a communication hook ``hook(state, bucket) -> Future[Tensor]``.

    The two parameters are known by their positions, whatever they are called (COMM-009); partials and callable objects
    are as good as functions (COMM-010).

    Raises:
        TypeError: not callable (COMM-003), does not take two positional arguments, or is one of the bfloat16 hooks
            where bfloat16 cannot be reduced (COMM-006).
        ValueError: an annotation says that the second parameter is no GradBucket (COMM-004) or that what is returned
            is no future of a tensor (COMM-005).
    """
    if not callable(hook):
        refuse(TypeError, f"Communication hook must be callable, got {type(hook).__name__}.")
    signature = _signature(hook)
    if signature is not None:
        _check_signature(hook, signature, refuse)
    if hook_name(hook).rpartition(".")[2] in _BFLOAT16_HOOKS and not bfloat16_can_be_reduced():
        refuse(
            TypeError,
            f"Communication hook {hook_name(hook)}: bfloat16 needs CUDA or ROCm with NCCL 2.10 or later, or XPU with "
            "XCCL, and this machine has neither. Use fp16_compress_hook, or no compression.",
        )


def hook_name(hook: Any) -> str:
    """The qualified name, as it is logged (COMM-011), of the hook's function, or else of its class."""
    hook = function_of(hook)
    return str(getattr(hook, "__qualname__", type(hook).__qualname__))


def bfloat16_can_be_reduced() -> bool:
    """Whether this build can reduce bfloat16 on an accelerator."""
    if (torch.version.cuda or torch.version.hip) and dist.is_nccl_available():
        return bool(torch.cuda.nccl.version() >= (2, 10))  # type: ignore[no-untyped-call]
    return torch.xpu.is_available() and dist.is_xccl_available()


def _signature(hook: Any) -> inspect.Signature | None:
    """The hook's signature with annotations evaluated where they can be; None for callables that do not tell."""
    try:
        return inspect.signature(hook, eval_str=True)
    except ValueError:
        return None
    except (NameError, AttributeError, SyntaxError, TypeError):  # names that exist for type checkers only
        return inspect.signature(hook)


def _check_signature(hook: Any, signature: inspect.Signature, refuse: Fail) -> None:
    try:
        signature.bind(None, None)
    except TypeError:
        refuse(
            TypeError,
            f"Communication hook {hook_name(hook)} is called with two positional arguments, the state and the bucket, "
            f"but its signature is {signature}.",
        )
    bucket = _second_positional(signature)
    if bucket is not None and not _is_bucket(bucket.annotation):
        refuse(
            ValueError,
            f"Communication hook: bucket annotation should be dist.GradBucket, but parameter '{bucket.name}' of "
            f"{hook_name(hook)} is annotated {bucket.annotation!r}. Correct it or leave it out.",
        )
    if not _is_future_of_tensor(signature.return_annotation):
        refuse(
            ValueError,
            "Communication hook: return annotation should be torch.futures.Future, of one tensor, but that of "
            f"{hook_name(hook)} is {signature.return_annotation!r}. Correct it or leave it out.",
        )


def _second_positional(signature: inspect.Signature) -> inspect.Parameter | None:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [parameter for parameter in signature.parameters.values() if parameter.kind in kinds]
    return positional[1] if len(positional) > 1 else None


def _is_bucket(annotation: Any) -> bool:
    if annotation is inspect.Parameter.empty:
        return True
    if isinstance(annotation, str):  # could not be evaluated
        return _BUCKET_TEXT.fullmatch(annotation.strip()) is not None
    return annotation in (GradBucket, OwnGradBucket)


def _is_future_of_tensor(annotation: Any) -> bool:
    if annotation is inspect.Signature.empty:
        return True
    if isinstance(annotation, str):  # could not be evaluated
        return _FUTURE_TEXT.fullmatch(annotation.strip()) is not None
    return get_origin(annotation) is torch.futures.Future and get_args(annotation) == (torch.Tensor,)
