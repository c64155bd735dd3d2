"""Defects of area ddp: construction: requirements, defaults, validation."""

from __future__ import annotations

from typing import Any

from impl.ddp import buffers
from impl.ddp.log import DDPLogger
from impl.ddp.wrapper import DistributedDataParallel

from ..planting import defect, edit, swap


@defect("DDP-023")
def any_value_asks_for_the_side_stream() -> None:
    """The side stream is switched off by 0 alone, not by anything but 1."""
    edit('== "1"', '!= "0"')


@defect("DDP-005")
def broadcast_chunks_as_small_as_buckets() -> None:
    """Model state is broadcast in chunks of the size of gradient buckets, 25 MiB."""
    swap(buffers, "BROADCAST_CHUNK_BYTES", 25 * 1024 * 1024)


@defect("DDP-004")
def bucket_size_in_megabytes() -> None:
    """The bucket size is taken in units of a million bytes."""
    edit("int(cap_mib * MIB)", "int(cap_mib * 1000 * 1000)")


@defect("DDP-015")
def check_reduction_unnoticed() -> None:
    """The retired check_reduction is accepted without a word."""
    edit("if check_reduction:", "if check_reduction is None:")


@defect("DDP-007", "DDP-008")
def devices_ignored_on_the_cpu() -> None:
    """device_ids and output_device are silently ignored for a module on the CPU, however many."""
    edit("is not None) and not on_one_accelerator", "is not None) and len(devices) > 1")
    edit(
        "device_ids is not None and len(device_ids) > 1",
        "device_ids is not None and len(device_ids) > 1 and everything[0].is_cuda",
    )
    edit("if device_ids else None", "if device_ids and on_one_accelerator else None")


@defect("DDP-014")
def empty_delay_list_counts_as_absent() -> None:
    """An empty list of delayed parameters counts as not given."""
    edit("(named is None) != (trigger is None)", "bool(named) != (trigger is not None)")


@defect("DDP-008")
def empty_device_ids_refused() -> None:
    """An empty list of device ids is taken for given devices."""
    edit("(device_ids or output_device", "(device_ids is not None or output_device")


@defect("DDP-019")
def errors_not_logged() -> None:
    """Errors are raised without a trace in the logging data."""
    def throw(self: Any, kind: type[Exception], text: str) -> None:
        raise kind(text)

    swap(DistributedDataParallel, "_log_and_throw", throw)
    swap(DDPLogger, "fail", throw)


@defect("DDP-003", "DDP-051", worlds=(3,))
def every_group_is_the_world() -> None:
    """A given process group is ignored: all ranks of the world take part."""
    edit("return Team.of(process_group).group", "return Team.of(None).group")


@defect("DDP-006")
def frozen_model_accepted() -> None:
    """A model is refused only if it has no parameters at all, not if all of them are frozen."""
    edit("not any(parameter.requires_grad for parameter in everything)", "not everything")


@defect("DDP-004")
def given_size_spares_the_first_bucket() -> None:
    """A bucket size given by the user does not apply to the first bucket."""
    edit("BucketCaps((_bytes_of(cap_mib),))", "BucketCaps((MIB, _bytes_of(cap_mib)))")


@defect("DDP-011")
def lazy_parameters_are_a_value_error() -> None:
    """A module with uninitialised parameters is refused with a ValueError."""
    edit('raise RuntimeError(\n                "Modules', 'raise ValueError(\n                "Modules')


@defect("DDP-019", "DDP-142", "DDP-147")
def logged_errors_become_runtime_errors() -> None:
    """What is logged as an error is raised as a RuntimeError, whatever its class."""
    right = swap(
        DistributedDataParallel, "_log_and_throw", lambda self, kind, text: right(self, RuntimeError, text)
    )


@defect("DDP-012")
def mesh_beats_group() -> None:
    """With both a group and a mesh the mesh silently wins."""
    edit("process_group is not None and device_mesh is not None", "process_group is device_mesh is not None")


@defect("DDP-013")
def mesh_of_any_shape() -> None:
    """Of a mesh with several dimensions the first one is silently taken."""
    edit("device_mesh.ndim != 1", "device_mesh.ndim < 1")


@defect("DDP-013", worlds=(3,))
def mesh_stands_for_the_world() -> None:
    """A mesh is accepted and its group is not used: averages go over the world."""
    edit("return device_mesh.get_group(mesh_dim=0)", "return Team.of(None).group")


@defect("DDP-001")
def no_group_is_an_assertion() -> None:
    """Without a process group the constructor fails with an AssertionError."""
    edit('ValueError("There is no', 'AssertionError("There is no')


@defect("DDP-016")
def old_buffer_argument_warns_when_false_only() -> None:
    """broadcast_buffers=True is accepted without a word; only False warns."""
    edit("if broadcast_buffers is None:", "if broadcast_buffers is not False:")


@defect("DDP-005")
def only_the_last_chunk_is_sent() -> None:
    """Of buffers that do not fit into one broadcast, those of the last chunk are sent."""
    edit("yield chunk\n                chunk, size", "chunk, size")


@defect("DDP-002")
def searches_by_default() -> None:
    """Unused parameters are searched for unless that is switched off."""
    edit("find_unused_parameters: bool = False", "find_unused_parameters: bool = True")


@defect("DDP-002")
def shares_memory_by_default() -> None:
    """gradient_as_bucket_view is on unless it is switched off."""
    edit("gradient_as_bucket_view: bool = False", "gradient_as_bucket_view: bool = True")


@defect("DDP-004")
def small_caps_come_again() -> None:
    """The small cap of the first bucket holds for every second one."""
    edit("min(position, len(self.sizes_bytes) - 1)", "position % len(self.sizes_bytes)")


@defect("DDP-017")
def sync_batch_norm_looked_for_at_the_top() -> None:
    """SyncBatchNorm is looked for among the direct children only."""
    edit("module.modules()", "module.children()", within="check_sync_batchnorm")


@defect("DDP-010")
def two_device_types_accepted() -> None:
    """A model on two types of devices is accepted."""
    edit("len(types) != 1", "len(types) < 1")


@defect("DDP-024")
def unset_variables_are_left_out() -> None:
    """The dump of the environment leaves out what is not set."""
    edit("for name in _RELEVANT_VARIABLES:", "for name in filter(os.environ.get, _RELEVANT_VARIABLES):")


@defect("DDP-018")
def wraps_a_copy() -> None:
    """The module is copied, and the copy is trained."""
    copied = "import copy\n    module = self.module = copy.deepcopy(module)\n"
    edit("self.module = module\n", copied, within="DistributedDataParallel.__init__")


@defect("DDP-004", "DDP-054")
def listed_sizes_go_by_all_closed_buckets() -> None:
    """The list of bucket sizes goes on with another dtype's buckets, instead of beginning anew."""
    edit("caps.of_bucket(closed[kind])", "caps.of_bucket(len(full))")


@defect("DDP-022")
def averages_stay_out_of_a_remote_context() -> None:
    """Gradients that lie in the buckets do not get back into the context of distributed autograd."""
    edit("parameter.grad is not gradient:", "parameter.grad is gradient:")


@defect("DDP-022")
def a_remote_context_takes_the_gradients_from_before() -> None:
    """What ``.grad`` held before a backward of distributed autograd is replaced by what the context holds."""
    edit("parameter.grad = old\n", "parameter.grad = parameter.grad if old is not None else old\n")


@defect("DDP-022")
def no_sync_does_not_hold_in_a_remote_context() -> None:
    """A forward under no_sync is averaged all the same in a context of distributed autograd."""
    edit("self.context = kernels.distributed_context() if kernels.uses_rpc() else None", (
        "self.context = kernels.distributed_context() if kernels.uses_rpc() else None\n"
        "    self.sync |= self.context is not None"
    ))  # fmt: skip


@defect("DDP-022")
def an_ordinary_backward_in_a_remote_context_stays_local() -> None:
    """An ordinary backward of a forward in a context of distributed autograd is not looked at when it ends."""
    edit("if remote is None or not self._ended_remotely(remote):", "if remote is None or self._ended_remotely(remote):")


@defect("DDP-022")
def contexts_hold_only_what_a_backward_has_brought() -> None:
    """What a distributed context holds from another backward is taken for what the one that ends has come to."""
    edit("if index in remote.came or index not in self.usage.unused:", "if True:")


@defect("DDP-013", worlds=(4,))
def layers_that_are_sharded_are_wrapped_as_they_are() -> None:
    """A model whose layers are sharded over another dimension of the mesh is not wrapped by its own shards."""
    edit("kernels.keep_local_shards(module)", "pass")


@defect("DDP-025")
def only_buffers_are_looked_at_before_they_are_sent() -> None:
    """A frozen parameter that cannot be packed is met by the source alone; its peers wait for it."""
    edit('= {f"Parameter {item.name}": item.parameter for item in compared}', "= {}")


@defect("DDP-025")
def tensors_of_other_classes_are_packed_without_a_look() -> None:
    """A distributed tensor is met by the source alone; its peers wait for it."""
    edit("type(tensor) not in (torch.Tensor, nn.Parameter)", "False")


@defect("DDP-033")
def layers_are_warned_of_while_the_model_is_evaluated() -> None:
    """A layer that is there for an evaluation alone is warned of."""
    edit("if added and torch.is_grad_enabled():", "if added:")
