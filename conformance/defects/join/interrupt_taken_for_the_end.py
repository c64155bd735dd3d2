"""Only an Exception counts as an error: after a KeyboardInterrupt the rank shadows as if it had run out of inputs."""

from impl.join.context import Join

from ..planting import edit

CLAUSES = ("JOIN-023",)


def plant() -> None:
    edit(
        Join, "_leave",
        "        if error is None:\n            self._shadow_and_finish(passage)",
        "        if not isinstance(error, Exception):\n            self._shadow_and_finish(passage)",
    )
