"""Defects of area ddp: pickling and checkpoints."""

from __future__ import annotations

from typing import Any

from impl.ddp import DistributedDataParallel, pickling

from ..planting import defect, edit, override, swap


@defect("DDP-158")
def a_copy_is_what_the_module_makes_of_itself() -> None:
    """A wrapper around a module that says how it is copied is copied as a bare module."""
    edit(' or name.startswith("__")', "")


@defect("DDP-159")
def old_pickles_stay_out_of_sync() -> None:
    """A pickle without the two flags comes back with synchronisation off."""
    edit("own = dict(state)", 'own = {"require_backward_grad_sync": False, **state}')


@defect("DDP-156")
def pickles_a_group_of_all() -> None:
    """A model may be pickled if its group has all ranks, though it is not the default one."""
    edit("group is not dist.group.WORLD", "dist.group.WORLD is None or group.size() != dist.group.WORLD.size()")


@defect("DDP-156")
def pickles_any_group() -> None:
    """A model on a group of its own can be pickled, and comes back on the default one."""
    swap(pickling, "check_default_group", lambda *_: None)


@defect("DDP-155")
def pickles_the_logger() -> None:
    """The logger is pickled along."""
    swap(pickling, "_OF_THIS_PROCESS", tuple(name for name in pickling._OF_THIS_PROCESS if name != "logger"))


@defect("DDP-155")
def pickling_strips_the_live_object() -> None:
    """Pickling takes the handles of this process away from the object itself."""
    def state_of(self: DistributedDataParallel) -> dict[str, Any]:
        state = right(self)
        self.__dict__.update({"logger": None, "reducer": None})
        return state

    right = swap(DistributedDataParallel, "__getstate__", state_of)


@defect("DDP-159")
def restored_models_always_synchronise() -> None:
    """A restored model synchronises its next backward whatever was stored."""
    edit("for name, value in kept.items():", "for name, value in ():", within="__setstate__")


@defect("DDP-158")
def restored_models_send_buffers_at_once() -> None:
    """A restored model synchronises buffers in its first forward, though the last one before was under no_sync."""
    edit(
        "    if static_graph:\n",
        "    self.require_forward_param_sync = True\n    if static_graph:\n",
        within="__setstate__",
    )


@defect("DDP-161")
def state_dict_without_prefix() -> None:
    """The state dict has the wrapped module's keys."""
    override(
        DistributedDataParallel, "state_dict", lambda self, *args, **kwargs: self.module.state_dict(*args, **kwargs)
    )


@defect("DDP-158")
def unpickled_forgets_the_options() -> None:
    """An unpickled model no longer looks for unused parameters."""
    edit(
        "    self._build_parts()",
        "    vars(self._config)['find_unused_parameters'] = False\n    self._build_parts()",
        within="__setstate__",
    )


@defect("DDP-089")
def a_copy_forgets_an_evaluation() -> None:
    """A copy that is made behind an evaluation begins its training with buffers of each rank's own."""
    kept = tuple(name for name in pickling.KEPT_BY_PARTS if name != "_synchronises_after_evaluation")
    swap(pickling, "KEPT_BY_PARTS", kept)


@defect("DDP-159")
def unpickled_graph_is_dynamic() -> None:
    """An unpickled model has forgotten that its graph is static."""
    edit("if static_graph:", "if static_graph and delayed:", within="__setstate__")


@defect("DDP-158")
def unpickled_stays_local() -> None:
    """An unpickled model has no hooks on its parameters, so its gradients stay local."""
    def restore(self: DistributedDataParallel, state: dict[str, Any]) -> None:
        right(self, state)
        self.reducer.remove_hooks()

    right = swap(DistributedDataParallel, "__setstate__", restore)


@defect("DDP-160")
def hooks_come_back_without_their_state() -> None:
    """A restored model has the hook that was registered, with None for its state."""
    edit(
        'return pickling.state_of(vars(self)) | kept | {"_delayed_names": delayed}',
        'return pickling.state_of(vars(self)) | kept | {"_delayed_names": delayed, "hooks": self._comm_hooks}',
    )
    edit("own, kept, delayed, static_graph = ", 'hooks = state.pop("hooks")\n    own, kept, delayed, static_graph = ')
    edit(
        "    for name, value in kept.items():",
        "    for hook, _ in hooks:\n        self.register_comm_hook(None, hook)\n    for name, value in kept.items():",
        within="__setstate__",
    )


@defect("DDP-158")
def restored_models_ignore_nothing() -> None:
    """A restored model manages the parameters and buffers that it was told to leave alone, too."""
    edit(
        "    self._build_parts()",
        "    self.__dict__['_config'] = __import__('dataclasses').replace(self._config, ignored=frozenset())\n"
        "    self._build_parts()",
        within="__setstate__",
    )


@defect("DDP-158")
def restored_models_follow_their_constructor() -> None:
    """Whether a restored model synchronises buffers is what its constructor was told, not what was set later."""
    edit("    kept = {", '    own.pop("forward_sync_buffers", None)\n    kept = {', within="parts_of")


@defect("DDP-158")
def chunks_of_buffers_are_as_large_as_in_the_beginning() -> None:
    """A restored model sends its buffers in chunks of the default size, whatever size was set."""
    edit("if name in own}", 'if name in own and name != "broadcast_bucket_size"}', within="parts_of")


@defect("DDP-158")
def restored_models_clone_their_outputs() -> None:
    """A restored model clones its outputs, whatever was set before."""
    edit("if name in own}", 'if name in own and name != "_ddp_sink_clone"}', within="parts_of")
