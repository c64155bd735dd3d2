"""The first joinable's device is looked at when hooks have been made already."""

from impl.join import Join

from ..planting import edit

CLAUSES = ("JOIN-020",)


def plant() -> None:
    edit(Join, "__init__", "    self._device = device_of(self._joinables[0])\n", "")
    edit(
        Join,
        "__init__",
        "for joinable in self._joinables]\n",
        "for joinable in self._joinables]\n    self._device = device_of(self._joinables[0])\n",
    )
