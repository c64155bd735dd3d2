"""An error in the hook comes out of backward as a RuntimeError."""

from impl.ddp.traffic import Traffic

from ..planting import edit

CLAUSES = ("COMM-015",)


def plant() -> None:
    edit(
        Traffic,
        "_start_hook",
        "    future = function(state, shown)",
        "    try:\n        future = function(state, shown)\n"
        "    except Exception as error:\n        raise RuntimeError(f'the hook failed: {error}') from error",
    )
