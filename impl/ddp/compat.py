"""Names of torch's DDP that other code calls: inspection, scattering, and switches without machinery of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..comm.coalesce import broadcast_coalesced
from ..comm.ranks import GroupRank
from .hooks.default_hooks import allreduce_hook
from .optimizer_in_backward import check_fused
from .parts import Parts, running

if TYPE_CHECKING:
    from .log import Entry
    from .wrapper import DistributedDataParallel

_RELEVANT_VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME",
    "GLOO_DEVICE_TRANSPORT", "NCCL_SOCKET_IFNAME", "TORCH_NCCL_BLOCKING_WAIT", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS",
    "NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_SOCKET_NTHREADS",
    "NCCL_NSOCKS_PERTHREAD", "NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_RINGS", "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NCHANNELS", "NCCL_CHECKS_DISABLE", "NCCL_CHECK_POINTERS", "NCCL_LAUNCH_MODE", "NCCL_IB_HCA",
    "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT", "NCCL_IB_GID_INDEX", "NCCL_IB_SL", "NCCL_IB_TC", "NCCL_IB_AR_THRESHOLD",
    "NCCL_IB_CUDA_SUPPORT", "NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ", "NCCL_SINGLE_RING_THRESHOLD",
    "NCCL_LL_THRESHOLD", "NCCL_TREE_THRESHOLD", "NCCL_ALGO", "NCCL_PROTO", "NCCL_IGNORE_CPU_AFFINITY",
    "NCCL_DEBUG_FILE", "NCCL_COLLNET_ENABLE", "NCCL_TOPO_FILE", "NCCL_TOPO_DUMP_FILE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_DISTRIBUTED_DEBUG",
)


def _dump_DDP_relevant_env_vars() -> None:
    """Print one line for each environment variable that data-parallel training reads; N/A when unset (DDP-024)."""
    for name in _RELEVANT_VARIABLES:
        sys.stdout.write(f"env:{name}={os.environ.get(name, 'N/A')}\n")


class CompatibleNames(Parts):
    """Small methods of torch's DDP, kept by name; a base of ``DistributedDataParallel`` alone."""

    if TYPE_CHECKING:
        _occupy_hook_slot: Callable[[object, Any, str], None]

    # -- inspection

    def _get_ddp_logging_data(self) -> dict[str, Entry]:
        """What this object was built with and how it runs, as one flat dictionary (DDP-144)."""
        assert self.logger is not None, "logging data require the logger"
        return self.logger._get_ddp_logging_data()

    def _set_ddp_runtime_logging_sample_rate(self, sample_rate: int) -> None:
        """Refresh run-time entries every so many iterations after the first ten; ValueError below 1 (DDP-142)."""
        if sample_rate < 1:
            text = f"The sample rate is a number of iterations, at least 1, and not {sample_rate}."
            self._log_and_throw(ValueError, text)
        assert self.logger is not None, "the sampling rate requires the logger"
        self.logger.sample_rate = sample_rate

    def _check_reducer_finalized(self) -> None:
        """RuntimeError if the last backward left gradients unreduced (DDP-063)."""
        self.reducer.check_finished()

    def _build_debug_param_to_name_mapping(self, parameters: list[nn.Parameter]) -> dict[int, str]:
        """Names by the parameters' places in ``parameters``; ValueError unless all trained ones are there (DDP-147)."""
        places = {parameter: place for place, parameter in enumerate(parameters)}
        names: dict[int, str] = {}
        for name, parameter in self.module.named_parameters():
            if name in self.parameters_to_ignore or not parameter.requires_grad:
                continue
            if parameter not in places:
                self._log_and_throw(
                    ValueError,
                    f"Param with name {name} is trained by the module, but missing from the parameters that are "
                    "reduced. That is a bug inside DDP: please report it.",
                )
            names[places[parameter]] = name
        if len(places) != len(names):
            self._log_and_throw(
                ValueError,
                f"Expected param to name mapping of all {len(places)} parameters that are reduced, but the module has "
                f"names for {len(names)} of them only. That is a bug inside DDP: please report it.",
            )
        return names

    def _build_params_for_reducer(self) -> tuple[list[nn.Parameter], list[bool]]:
        """The parameters that are reduced, and for each whether its gradient is expected to be sparse."""
        return list(self.reducer.parameters), [spec.sparse for spec in self.reducer.specs]

    @classmethod
    def _get_active_ddp_module(cls) -> DistributedDataParallel | None:
        """The object whose wrapped forward is running, if any (DDP-042)."""
        return running.ddp

    @property
    def _distributed_rank(self) -> int:
        """This process's rank in the group."""
        return int(self.reducer.team.rank)

    def _get_parameters(self, m: nn.Module, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Parameters module by module; former parameters of a replica where it has some (DDP-170)."""
        for module in m.modules() if recurse else [m]:
            former = getattr(module, "_former_parameters", None)
            yield from module.parameters(recurse=False) if former is None else former.values()

    @staticmethod
    def _get_data_parallel_params(module: nn.Module, named_params: bool = False) -> Iterator[Any]:
        """Parameters (or name and parameter) that are not marked as ignored (DDP-152, DDP-153)."""
        for name, parameter in module.named_parameters():
            if not getattr(parameter, "_ddp_ignored", False):
                yield (name, parameter) if named_params else parameter

    # -- switches

    def _set_ddp_sink_clone(self, val: bool) -> None:
        """Whether outputs that pass the sink are cloned, so that they may be changed in place (DDP-112, DDP-113)."""
        self._ddp_sink_clone = val

    def _remove_autograd_hooks(self) -> None:
        """Backward stays local from now on (DDP-066)."""
        self.reducer.remove_hooks()

    def _set_sparse_metadata(self, global_unique_ids: dict[str, torch.Tensor]) -> None:
        """Hand the reducer the global ids of sparse rows (DDP-169)."""
        self.reducer._set_sparse_metadata(global_unique_ids)

    def _passing_sync_batchnorm_handle(self, module: nn.Module) -> None:
        """ValueError for SyncBatchNorm layers anywhere in a CPU module (DDP-017)."""
        if self.device_type == "cpu" and any(isinstance(child, nn.SyncBatchNorm) for child in module.modules()):
            self._log_and_throw(
                ValueError,
                "This CPU module holds SyncBatchNorm layers, which need an accelerator (GPU modules). Use BatchNorm "
                "layers, or move the module before wrapping it.",
            )

    def _register_accum_grad_hook(self) -> None:
        """Reduce parameter by parameter instead of by bucket (DDP-167)."""
        self._per_parameter.install()

    def _register_fused_optim(
        self, optim: type, *args: Any, optim_params: Iterable[Any] | None = None, **kwargs: Any
    ) -> None:
        """Step ``optim(parameters, *args, **kwargs)`` in every synchronised backward (DDP-133).

        It takes the place of the communication hook: registering twice, or beside a hook, raises RuntimeError.
        """
        check_fused(optim, self._log_and_throw)
        chosen = list(optim_params) if optim_params is not None else list(self.reducer.parameters)
        self._occupy_hook_slot(None, allreduce_hook, f"fused {optim.__name__}")
        self.reducer.optimizers.append(optim(chosen, *args, **kwargs))

    # -- moving data

    def _default_broadcast_coalesced(
        self, bufs: list[torch.Tensor] | None = None, bucket_size: int | None = None, authoritative_rank: int = 0
    ) -> None:
        """Overwrite buffers (the managed ones by default) with those of a group rank, in chunks of so many bytes."""
        tensors = self.modules_buffers if bufs is None else bufs
        size = bucket_size or self.broadcast_bucket_size
        broadcast_coalesced(self.reducer.team, tensors, GroupRank(authoritative_rank), "buffers", size)

    def scatter(self, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
        """Split tensors along ``dim`` over devices (DDP-045)."""
        from torch.nn.parallel.scatter_gather import scatter_kwargs

        return scatter_kwargs(inputs, kwargs, device_ids, dim=self.dim)

    def to_kwargs(self, inputs: Any, kwargs: Any, device_id: int) -> Any:
        """Arguments on the given device, one tuple each for positional and keyword ones (DDP-045)."""
        device = torch.device(self.device_type, device_id)
        return (self._moved(inputs, device),), (self._moved(kwargs, device),)

    def gather(self, outputs: Any, output_device: Any) -> Any:
        """Bring outputs of several devices together along ``dim`` (DDP-045)."""
        from torch.nn.parallel.scatter_gather import gather

        return gather(outputs, output_device, dim=self.dim)

    @staticmethod
    def _moved(value: Any, device: torch.device) -> Any:
        from .containers import map_tensors

        return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), value)
