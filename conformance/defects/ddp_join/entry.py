"""Defects of area ddp_join: entry points and defaults."""

from __future__ import annotations

import torch.distributed as dist

from impl.ddp import DistributedDataParallel

from ..planting import defect, edit, swap


@defect("DDPJ-001", "DDPJ-022", worlds=(3,))
def group_is_the_whole_world() -> None:
    """DDP names the default group as its join group, whatever group it averages over."""
    swap(DistributedDataParallel, "join_process_group", lambda self: dist.group.WORLD)


@defect("DDPJ-005", worlds=(1,))
def hook_does_without_a_logger() -> None:
    """The join hook of a model that has lost its logger fails with an AttributeError."""
    edit("assert logger is not None,", "assert ddp is not None,", within="_DDPJoinHook.__init__")


@defect("DDPJ-005", worlds=(1,))
def hook_refuses_with_a_type_error() -> None:
    """The join hook refuses a foreign object with a TypeError."""
    edit(
        "    assert isinstance(uneven, UnevenInputs), (",
        "    if not isinstance(uneven, UnevenInputs):\n"
        '        raise TypeError("DDP join hook requires a DistributedDataParallel")\n'
        "    assert True, (",
    )


@defect("DDPJ-005", worlds=(1,))
def hook_takes_any_module() -> None:
    """The join hook does not look at what it is built around, and fails later with an AttributeError."""
    edit("assert isinstance(uneven, UnevenInputs), (", "assert ddp is not None, (")
    edit('getattr(ddp, "logger", None)', "ddp.logger")


@defect("DDPJ-003", "DDPJ-008")
def join_forgets_the_divide_setting() -> None:
    """join() does not pass its divide setting on to the hook."""
    edit(
        "throw_on_early_termination, divide_by_initial_world_size=divide_by_initial_world_size",
        "throw_on_early_termination",
    )


@defect("DDPJ-004")
def join_hook_does_not_know_its_default() -> None:
    """join_hook divides by the active ranks unless it is told otherwise."""
    edit("kwargs.get(name, True)", "kwargs.get(name)")


@defect("DDPJ-003")
def join_is_enabled_after_throwing() -> None:
    """join() hands enable and throw_on_early_termination on in the wrong order."""
    edit("[self], enable, throw_on_early_termination,", "[self], throw_on_early_termination, enable,")


@defect("DDPJ-006")
def joining_is_not_logged() -> None:
    """Making the join hook is not noted in the model's log."""
    edit("    logger._set_uneven_input_join()\n", "")


@defect("ZERO-022", worlds=(3,))
def failed_forwards_are_forgotten_only_with_a_backward() -> None:
    """A forward that failed on all ranks in an earlier context still counts in the next one."""
    edit(
        "    self.iteration.broken, self.iteration.awaits_backward = None, False\n",
        "    self.iteration.awaits_backward = False\n"
        "    if self._reducer.raised:\n        self.iteration.broken = None\n",
    )


@defect("ZERO-022", worlds=(3,))
def failed_backwards_are_not_given_up_at_entry() -> None:
    """A backward that failed on all ranks in an earlier context still counts in the next one."""
    edit("self._reducer.end_what_raised()", "pass", within="UnevenInputs.enter")
