"""An error in the hook is swallowed, and the gradients stay local."""

from impl.ddp.traffic import Traffic

from ..planting import edit

CLAUSES = ("COMM-015",)


def plant() -> None:
    edit(
        Traffic,
        "_start_hook",
        "    future = function(state, shown)",
        "    try:\n        future = function(state, shown)\n"
        "    except Exception:\n        future = torch.futures.Future()\n        future.set_result(flat)",
    )
