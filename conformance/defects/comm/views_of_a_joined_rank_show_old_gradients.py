"""On a joined rank the bucket's gradients are not views of the zeros that it sends."""

from impl.ddp.traffic import Traffic

from ..planting import edit

CLAUSES = ("DDPJ-014",)


def plant() -> None:
    edit(
        Traffic,
        "_start_hook",
        "bucket.views if flat is bucket.flat else [flat] if bucket.spec.sparse else bucket.views_of(flat)",
        "[flat] if bucket.spec.sparse else bucket.views",
    )
