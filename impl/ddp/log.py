"""The logging data of a DDP object: one flat dictionary of what it was built with and how it has run."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

import torch

from .plan import BucketPlan, ParameterSpec

_ENVIRONMENT = {
    "cuda_visible_devices": "CUDA_VISIBLE_DEVICES",
    "gloo_device_transport": "GLOO_DEVICE_TRANSPORT",
    "gloo_socket_ifname": "GLOO_SOCKET_IFNAME",
    "master_addr": "MASTER_ADDR",
    "master_port": "MASTER_PORT",
    "torch_distributed_debug": "TORCH_DISTRIBUTED_DEBUG",
    "nccl_async_error_handling": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "nccl_blocking_wait": "TORCH_NCCL_BLOCKING_WAIT",
    "nccl_debug": "NCCL_DEBUG",
    "nccl_ib_timeout": "NCCL_IB_TIMEOUT",
    "nccl_nthreads": "NCCL_NTHREADS",
    "nccl_socket_ifname": "NCCL_SOCKET_IFNAME",
}

_EARLY_ITERATIONS = 10  # each of the first ten iterations is logged (DDP-143)
_DEFAULT_SAMPLE_RATE = 100

#: C++ spellings that torch's logging data uses for dtypes
_DTYPE_WORDS = {"float32": "float", "float64": "double", "float16": "c10::Half", "bfloat16": "c10::BFloat16"}

Entry = int | str


def dtype_word(dtype: torch.dtype) -> str:
    """How the logging data spells a dtype."""
    name = str(dtype).removeprefix("torch.")
    return _DTYPE_WORDS.get(name, name)


class DDPLogger:
    """Collects the logging data (DDP-144); numbers that change each step are refreshed on sampled iterations only."""

    def __init__(self, construction: Mapping[str, Entry]) -> None:
        self._data: dict[str, Entry] = dict(construction)
        for name, variable in _ENVIRONMENT.items():
            self._data[name] = os.environ.get(variable, "N/A")
        self._data["iteration"] = 0
        #: iterations lived so far; the logged one lags behind between samples
        self._iterations = 0
        self.sample_rate = _DEFAULT_SAMPLE_RATE
        self._forward_start_ns = 0

    def note(self, **entries: Entry) -> None:
        """Add or replace entries."""
        self._data.update(entries)

    # the names by which torch's own parts speak to their logger

    def set_error_and_log(self, text: str) -> None:
        """Record an error (DDP-019)."""
        self.note(has_error=1, error=text)

    def _set_uneven_input_join(self) -> None:
        self.note(join_uneven_inputs=1)

    def _set_comm_hook_name(self, name: str) -> None:
        self.note(comm_hook=name)

    def _set_static_graph(self) -> None:
        self.note(static_graph=1)

    def _get_ddp_logging_data(self) -> dict[str, Entry]:
        return dict(self._data)

    # what changes while training

    def forward_starts(self) -> None:
        self._forward_start_ns = time.time_ns()

    def note_plan(self, plan: BucketPlan, specs: Sequence[ParameterSpec], *, rebuilt: bool) -> None:
        """Record the bucket layout: sizes in bytes, and for a rebuilt one the parameters by bucket."""
        sizes = [sum(specs[index].bytes for index in bucket.parameters) for bucket in plan.buckets]
        text = ", ".join(map(str, sizes))
        if not rebuilt:
            self.note(bucket_sizes=text)
            return
        indices = ", ".join(" ".join(map(str, bucket.parameters)) for bucket in plan.buckets)
        self.note(has_rebuilt_buckets=1, rebuilt_bucket_sizes=text, rebuilt_per_bucket_param_indices=indices)

    def step_done(self, order: Sequence[int], buckets: int, unused_bytes: int) -> None:
        """A synchronised backward has delivered; refresh the run-time entries if this iteration is sampled."""
        sampled = self._iterations <= _EARLY_ITERATIONS or self._iterations % self.sample_rate == 0
        if sampled:
            now = time.time_ns()
            self.note(
                iteration=self._iterations,
                num_buckets_reduced=buckets,
                unused_parameter_size=unused_bytes,
                prev_iteration_grad_ready_order_indices=", ".join(map(str, order)),
                forward_compute_time_start=self._forward_start_ns,
                forward_to_delivery_time=now - self._forward_start_ns,
            )
        self._iterations += 1
