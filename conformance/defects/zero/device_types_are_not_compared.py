"""Parameters on different types of device are not refused."""

import impl.zero.arguments

from ..planting import edit

CLAUSES = ("ZERO-004",)


def plant() -> None:
    edit(
        impl.zero.arguments, "check_alike",
        '            ("device type", parameter.device.type, first.device.type),\n',
        "",
    )
