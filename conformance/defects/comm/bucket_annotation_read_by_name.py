"""An annotation is looked at only if the parameter is called bucket."""

from impl.ddp.hooks import validation

from ..planting import edit

CLAUSES = ("COMM-004",)


def plant() -> None:
    edit(
        validation,
        "_check_signature",
        "bucket is not None and not",
        'bucket is not None and bucket.name == "bucket" and not',
    )
