"""Defects of area ddp: remaining helpers and documented assumptions."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from impl.ddp import DistributedDataParallel

from ..planting import defect, edit, swap


@defect("DDP-170")
def former_parameters_overlooked() -> None:
    """The generator of parameters overlooks a replica's former parameters."""
    edit('getattr(each, "_former_parameters", None)', "None")


@defect("DDP-170")
def generator_stops_at_the_top() -> None:
    """The generator of parameters does not go into submodules."""
    edit("m.modules() if recurse else [m]", "[m]")


@defect("DDP-166")
def parameters_follow_rank_0() -> None:
    """Every training forward makes the parameters equal to rank 0's again."""
    def prepare(self: DistributedDataParallel, *inputs: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            for parameter in self._module_parameters:
                dist.broadcast(parameter.data, group_src=0, group=self.process_group)
        return right(self, *inputs, **kwargs)

    right = swap(DistributedDataParallel, "_pre_forward", prepare)


@defect("DDP-167")
def per_parameter_hook_gets_the_parameter_first() -> None:
    """Hooks of the mode without buckets get parameter and gradient in the wrong order."""
    edit("(gradient, parameter)", "(parameter, gradient)")


@defect("DDP-167")
def per_parameter_in_no_sync() -> None:
    """Reducing parameter by parameter goes on under no_sync."""
    edit("gradient is not None and self.due()", "gradient is not None")


@defect("DDP-167")
def per_parameter_in_the_memory_of_the_backward() -> None:
    """Averages replace a gradient that the backward is still to pass on."""
    edit("torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient.detach())", "gradient.detach()")


@defect("DDP-074")
def per_parameter_the_place_of_the_backward_counts() -> None:
    """Parameter by parameter, no_sync counts where the backward runs."""
    edit("self._iteration.wants_reductions if forward is None else forward", "self._iteration.wants_reductions")


@defect("DDP-167")
def per_parameter_sparse_becomes_dense() -> None:
    """Reducing parameter by parameter makes a dense gradient of a sparse one."""
    edit("if gradient.is_sparse:", "if False:", within="_arrived")


@defect("DDP-167")
def per_parameter_sums() -> None:
    """Reducing parameter by parameter sums the gradients and does not divide."""
    edit("finish_mean(gradient, team.size)", "pass")


@defect("DDP-167")
def python_reducer_divides_by_the_world() -> None:
    """Parameter by parameter, gradients are divided by the size of the world and not by that of the group."""
    edit("team.size)", "torch.distributed.get_world_size())", within="reduce")


@defect("DDP-169")
def sparse_metadata_lost() -> None:
    """The ids of sparse rows are not passed on."""
    swap(DistributedDataParallel, "_set_sparse_metadata", lambda self, global_unique_ids: None)


@defect("DDP-168")
def waits_for_what_others_own() -> None:
    """The search for outputs asks the owner of a reference for its value, and leaves it alone then."""
    edit(
        "    return rpc.is_available() and isinstance(value, rpc.RRef) and value.is_owner()",
        "    if hasattr(value, 'to_here') and not value.is_owner():\n"
        "        value.to_here()\n"
        "    return rpc.is_available() and isinstance(value, rpc.RRef) and value.is_owner()",
    )


@defect("DDP-005")
def tensors_are_sent_from_the_first_rank_always() -> None:
    """The broadcast of torch's name sends from group rank 0, whoever is asked for."""
    edit("GroupRank(authoritative_rank)", "GroupRank(0)")


@defect("DDP-167")
def halves_are_added_before_they_are_divided() -> None:
    """The reducer by parameter adds gradients of two bytes up first, which overflows."""
    edit(
        'start_mean(team, team.size, gradient, "gradient of one parameter").wait()\n        finish_mean(',
        'start_mean(team, 1, gradient, "gradient of one parameter").wait()\n        kernels.divide(',
    )


@defect("DDP-167")
def the_forward_reached_last_decides_parameter_by_parameter() -> None:
    """Of a backward through forwards inside and outside no_sync, the one that it reaches last decides."""
    edit("pending.sync or (backward == self.running_backward and self.running_sync)", "pending.sync")


@defect("DDP-167", "DDP-162", worlds=(3,))
def parameters_are_averaged_over_the_first_group() -> None:
    """The reducer by parameter goes on in the group of the first average after a move to another one."""
    edit(
        "        team = self._iteration.team\n",
        '        team = self.__dict__.setdefault("_team", self._iteration.team)\n',
        within="PerParameterReduction.reduce",
    )


@defect("DDP-167")
def layouts_of_one_rank_are_sent() -> None:
    """The reducer by parameter sends a gradient in whatever layout the program has given it on this rank."""
    edit("torch.empty_like(parameter, dtype=gradient.dtype)", "torch.empty_like(gradient)", within="_arrived")


@defect("DDP-074")
def a_backward_inside_another_asks_when_it_runs() -> None:
    """Parameter by parameter, what a reentrant checkpoint brings is averaged as no_sync is when it comes."""
    edit("return None if self.latest is None else self.latest.sync", "return None")


@defect("DDP-095")
def futures_of_buffer_hooks_are_not_awaited_parameter_by_parameter() -> None:
    """The reducer by parameter leaves the futures of a buffer hook to the next forward."""
    edit("    self._iteration.await_futures()\n", "", within="PerParameterReduction.reduce")


@defect("DDP-170")
def no_former_parameters_count_as_none_known() -> None:
    """A replica's module without former parameters is taken for one that is no replica's."""
    edit("if former is None else", "if not former else", within="parameters_or_former")


@defect("DDP-167")
def per_parameter_beside_delayed_ones() -> None:
    """Where gradients are averaged one by one, delayed parameters are taken, and stay local."""
    edit("if others:", "if False:", within="PerParameterReduction._refuse")


@defect("DDP-167")
def by_parameter_what_no_forward_announced_stays_local() -> None:
    """In the Python-reducer mode a backward that no forward of the wrapper came before is not averaged."""
    edit("return self._iteration.wants_reductions if forward is None else forward", "return bool(forward)")


@defect("DDP-049")
def by_parameter_gradients_have_the_dtype_of_their_parameters() -> None:
    """In the Python-reducer mode gradients that a program keeps in a wider dtype are cut to the parameter's."""
    edit("torch.empty_like(parameter, dtype=gradient.dtype)", "torch.empty_like(parameter)", within="_arrived")


@defect("DDP-167")
def by_parameter_a_forward_inside_speaks_first() -> None:
    """In the Python-reducer mode what arrives before a backward has come to the forward outside stays local."""
    edit("self.running_sync or self._will_be_synchronised()", "self.running_sync")


@defect("DDP-167")
def by_parameter_in_a_context_is_half_done() -> None:
    """In a join context the switch to the Python-reducer mode is refused only when buckets are no longer reduced."""
    edit(
        "    self._per_parameter.install(self.reducer.parameters, self._after_buckets())\n"
        "    self.reducer.if_thawed = self._per_parameter.watch_thawed\n"
        "    self.reducer.remove_hooks()\n",
        "    self.reducer.remove_hooks()\n"
        "    self._per_parameter.install(self.reducer.parameters, self._after_buckets())\n"
        "    self.reducer.if_thawed = self._per_parameter.watch_thawed\n",
    )


@defect("DDP-167")
def per_parameter_expects_a_gradient() -> None:
    """A gradient that the program has taken away in a hook of its own is averaged all the same."""
    edit("gradient is not None and self.due()", "self.due()")


@defect("DDP-167")
def what_is_thawed_is_averaged_twice() -> None:
    """Where a part is thawed, all parameters of the Python reducer get one more hook."""
    edit("self._parameters[len(self._handles) :]", "self._parameters")


@defect("DDP-167")
def an_entered_context_averages_by_parameter() -> None:
    """A context is entered with a model that averages parameter by parameter, which nobody can shadow."""
    edit("if entered and not self._handles:", "if entered:")


@defect("DDP-040")
def each_parameter_counts_as_a_backward_past_the_wrapper() -> None:
    """A single penalty on the weights is taken for as many backwards as it reaches parameters, and warned of."""
    edit("self._past = backward", "pass")
