"""The post hooks run even when the body has raised."""

from impl.join.context import Join

from ..planting import edit

CLAUSES = ("JOIN-023", "JOIN-043")


def plant() -> None:
    edit(
        Join, "_leave",
        "            passage.report(error)\n    except",
        "            passage.report(error)\n"
        "            for hook in self._join_hooks:\n"
        "                hook.post_hook(False)\n    except",
    )
