"""The module is copied, and the copy is trained."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-018",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "__init__",
        "self.module = module\n",
        "import copy\n    module = self.module = copy.deepcopy(module)\n",
    )
