"""A future of anything is accepted as the return annotation."""

from impl.ddp.hooks import validation

from ..planting import edit

CLAUSES = ("COMM-005",)


def plant() -> None:
    edit(validation, "_is_future_of_tensor", " and get_args(annotation) == (torch.Tensor,)", "")
