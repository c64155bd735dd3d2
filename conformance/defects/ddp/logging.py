"""Defects of area ddp: logging and debugging."""

from __future__ import annotations

from impl.ddp import log
from impl.ddp.log import DDPLogger

from ..planting import defect, edit, swap


@defect("DDP-143")
def every_iteration_is_sampled() -> None:
    """Run-time statistics are refreshed in every iteration, whatever the rate."""
    edit("iteration > _EARLY_ITERATIONS and iteration % self.sample_rate != 0", "iteration < 0")


@defect("DDP-146")
def indices_without_names() -> None:
    """Errors about missing gradients give the parameters' indices only."""
    edit("', '.join(specs[index].name for index in shown)", "len(shown)")


@defect("DDP-144")
def log_filled_by_training() -> None:
    """The logging data are empty until the first iteration."""
    edit("return dict(self._data)", "return dict(self._data) if self._iterations else {}")


@defect("DDP-144")
def forwards_are_timed_from_the_last_evaluation() -> None:
    """What begins a forward's time is the last one that is not synchronised."""
    edit("if sync:\n", "if not sync:\n", within="DistributedDataParallel._pre_forward")


@defect("DDP-144")
def communication_overlaps_all_of_the_iteration() -> None:
    """What is sent while backward computes is taken from the beginning of the forward."""
    edit("self.backward_end - self.comm_start", "self.backward_end - self.forward_start")


@defect("DDP-144")
def log_is_nested() -> None:
    """The logging data keep what was built apart from what was run."""
    edit("return dict(self._data)", 'return {**self._data, "environment": dict(os.environ)}')


@defect("DDP-148")
def logs_nothing_without_a_logger() -> None:
    """Without a logger the logging data are empty instead of an assertion failure."""
    edit('assert self.logger is not None, "logging data require the logger"', "if self.logger is None: return {}")


@defect("DDP-144")
def only_rebuilt_buckets_are_logged() -> None:
    """The log has no entry about rebuilt buckets unless there are some."""
    edit('self._data["has_rebuilt_buckets"] = 0', "pass")


@defect("DDP-142")
def sample_rate_of_nothing() -> None:
    """A sampling rate of 0 is accepted."""
    edit("sample_rate < 1", "sample_rate < 0")


@defect("DDP-143")
def sampling_starts_at_once() -> None:
    """The first ten iterations are not sampled one by one."""
    swap(log, "_EARLY_ITERATIONS", 0)


@defect("DDP-145")
def static_graph_not_logged() -> None:
    """The logging data do not say that the graph is static."""
    swap(DDPLogger, "_set_static_graph", lambda self: None)


@defect("DDP-147")
def surplus_parameters_passed_over() -> None:
    """Parameters without a name in the module are passed over."""
    edit("if len(places) != len(names):", "if len(places) < len(names):")


@defect("DDP-147")
def unknown_parameters_passed_over() -> None:
    """A parameter that the reducer's list lacks is passed over."""
    edit(
        "if not parameter.requires_grad:", "if parameter not in places or not parameter.requires_grad:",
        within="names_by_place",
    )  # fmt: skip


@defect("DDP-146")
def names_are_counted_with_every_alias() -> None:
    """Names are taken one by one from a list in which a shared parameter has two."""
    edit(
        "for name, parameter in nn.Module.named_parameters(module)\n",
        "for (name, _), parameter in zip(named_parameters(module), module.parameters())\n",
        within="managed_parameters",
    )


@defect("DDP-144")
def log_keeps_the_first_plan() -> None:
    """The log tells the buckets as they were rebuilt for the first time, whatever becomes of them."""
    edit("if not rebuilt:", 'if not rebuilt or "rebuilt_bucket_sizes" in self._data:', within="note_plan")


@defect("DDP-144")
def the_environment_is_asked_the_wrong_way_round() -> None:
    """For a variable of the environment the log tells the variable's name."""
    edit('os.environ.get(variable, "N/A")', 'os.environ.get("N/A", variable)')


@defect("DDP-144")
def use_is_compared_with_the_last_iteration_only() -> None:
    """The log takes a graph for static when two iterations in a row left the same parameters out."""
    edit("self.always_the_same &= self._former in", "self.always_the_same = self._former in")


@defect("DDP-144")
def the_log_tells_what_travels() -> None:
    """The log of a model in mixed precision tells the dtypes and sizes that gradients travel in as the parameters'."""
    told = "log.note_parameters(specs"
    edit(f"{told})", f"{told} if lowered is None else lowered.reduced_specs(specs))")


@defect("DDP-144")
def the_log_tells_the_place_in_the_world() -> None:
    """The log of a model on some ranks tells its rank in the world beside the size of the group."""
    edit('"rank": group.rank(),', '"rank": dist.get_rank(),')


@defect("DDP-147")
def frozen_parameters_are_missed_in_the_list() -> None:
    """A parameter that is not trained is called missing from the list of those that are reduced."""
    edit("        if not parameter.requires_grad:\n            continue\n", "", within="names_by_place")


@defect("DDP-144")
def averaged_times_count_one_iteration_too_many() -> None:
    """The averages of the log divide by one sample more than there is."""
    edit("self._sampled = 0", "self._sampled = 1")
