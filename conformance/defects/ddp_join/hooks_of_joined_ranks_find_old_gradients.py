"""The gradients that a hook on a joined rank is shown are not those of the bucket of zeros."""

from impl.ddp.traffic import Traffic

from ..planting import edit

CLAUSES = ("DDPJ-033",)


def plant() -> None:
    edit(
        Traffic,
        "_start_hook",
        "views = bucket.views if flat is bucket.flat else [flat] if bucket.spec.sparse else bucket.views_of(flat)",
        "views = [flat] if bucket.spec.sparse else bucket.views",
    )
