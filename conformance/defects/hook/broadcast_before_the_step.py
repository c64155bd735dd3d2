"""A bucket's parameters are sent before their owner has stepped them."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-018", "HOOK-019")


def plant() -> None:
    edit(
        OverlapSession, "_step_and_send",
        "    if flight.gradients:\n"
        "        parameters = [part.bucket.parameters[place] for place in flight.gradients]\n"
        "        self._steps.step_pairs(parameters, list(flight.gradients.values()))\n"
        "    for transfer in part.transfers:\n"
        "        transfer.start()\n",
        "    for transfer in part.transfers:\n"
        "        transfer.start()\n"
        "        transfer._pending.wait(watch)\n"
        "    if flight.gradients:\n"
        "        parameters = [part.bucket.parameters[place] for place in flight.gradients]\n"
        "        self._steps.step_pairs(parameters, list(flight.gradients.values()))\n",
    )
