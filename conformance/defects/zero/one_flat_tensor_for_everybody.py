"""All owners' parameters become views of one flat tensor."""

from impl.zero.publish import Publisher

from ..planting import edit

CLAUSES = ("ZERO-012",)


def plant() -> None:
    edit(
        Publisher, "__init__",
        "    for device, by_owner in shards.items():\n",
        "    if as_views:\n"
        "        for by_owner in shards.values():\n"
        "            _flattened([member for members in by_owner for member in members])\n"
        "    for device, by_owner in shards.items():\n",
    )
