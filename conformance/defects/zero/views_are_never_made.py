"""The option for bucket views is accepted and ignored."""

from impl.zero.sending import Sending

from ..planting import edit

CLAUSES = ("ZERO-012",)


def plant() -> None:
    edit(
        Sending, "_current_publisher",
        "self._sent, self.parameters_as_bucket_view",
        "self._sent, False",
    )
