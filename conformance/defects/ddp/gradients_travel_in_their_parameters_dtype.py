"""Gradients that are kept in a wider dtype than their parameters are rounded on their way between ranks."""

from impl.comm import averaging
from impl.ddp import params

from ..planting import swap

CLAUSES = ("DDP-049",)


def plant() -> None:
    swap(averaging, "gradient_dtype", lambda parameter: parameter.dtype)
    swap(params, "check_gradient_dtypes", lambda *_: None)
