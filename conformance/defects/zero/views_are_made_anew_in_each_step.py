"""Parameters as views of one flat tensor move to a new one in each step."""

from impl.zero.publish import Publisher

from ..planting import edit

CLAUSES = ("ZERO-012",)


def plant() -> None:
    edit(Publisher, "_add", "        self._addresses.extend(member.data_ptr() for member in members)\n", "")
    edit(
        Publisher,
        "_add",
        "        flat = _flattened(members)\n",
        "        self._addresses += [m.data_ptr() for m in members]\n        flat = _flattened(members)\n",
    )
