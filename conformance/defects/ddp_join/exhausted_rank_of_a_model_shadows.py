"""In throwing mode a rank of a model that has run out shadows the others once and then leaves without an error."""

from impl.join.session import Session

from ..planting import edit

CLAUSES = ("DDPJ-013", "JOIN-041")


def plant() -> None:
    edit(
        Session, "shadow",
        "        if self.throw:\n            self._raise_exhausted_here()\n",
        "        if self.throw:\n            break\n",
    )
