"""A disabled context runs the post hooks all the same."""

from impl.join.context import Join

from ..planting import edit

CLAUSES = ("JOIN-022",)


def plant() -> None:
    edit(
        Join, "__exit__",
        "            self._leave(self._passage, error)\n",
        "            self._leave(self._passage, error)\n"
        "        elif error is None:\n"
        "            for hook in self._join_hooks:\n"
        "                hook.post_hook(True)\n",
    )
