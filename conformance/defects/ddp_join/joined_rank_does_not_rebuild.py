"""A joined rank takes part in the agreement on the order of buckets, but keeps its old buckets."""

import impl.ddp.stages

from ..planting import edit

CLAUSES = ("DDPJ-031",)


def plant() -> None:
    edit(
        impl.ddp.stages, "_replan",
        "    reducer.rebuild(",
        "    if ddp._join_session is not None and ddp._join_session.shadowing:\n        return\n    reducer.rebuild(",
    )
