"""The logging data of a DDP object: one flat dictionary of what it was built with and how it has run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch

from .plan import BucketPlan, ParameterSpec

_ENVIRONMENT = {
    "cuda_visible_devices": "CUDA_VISIBLE_DEVICES",
    "master_addr": "MASTER_ADDR",
    "master_port": "MASTER_PORT",
    "torch_distributed_debug": "TORCH_DISTRIBUTED_DEBUG",
}

#: what is read besides, by backend
_ENVIRONMENT_OF = {
    "gloo": {"gloo_device_transport": "GLOO_DEVICE_TRANSPORT", "gloo_socket_ifname": "GLOO_SOCKET_IFNAME"},
    "nccl": {
        "nccl_async_error_handling": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "nccl_blocking_wait": "TORCH_NCCL_BLOCKING_WAIT",
        "nccl_debug": "NCCL_DEBUG",
        "nccl_ib_timeout": "NCCL_IB_TIMEOUT",
        "nccl_nthreads": "NCCL_NTHREADS",
        "nccl_socket_ifname": "NCCL_SOCKET_IFNAME",
    },
}

_GLOO_THREADS = 2  # of a Gloo process group, unless its options say otherwise

_EARLY_ITERATIONS = 10  # each of the first ten iterations is logged (DDP-143)
_DEFAULT_SAMPLE_RATE = 100

#: C++ spellings that torch's logging data uses for dtypes
_DTYPE_WORDS = {"float32": "float", "float64": "double", "float16": "c10::Half", "bfloat16": "c10::BFloat16"}

Entry = int | str


def dtype_word(dtype: torch.dtype) -> str:
    """How the logging data spells a dtype."""
    name = str(dtype).removeprefix("torch.")
    return _DTYPE_WORDS.get(name, name)


@dataclass
class Times:
    """When the parts of the current iteration began and ended on this rank, in ns since the epoch."""

    forward_start: int = 0
    backward_start: int = 0
    backward_end: int = 0
    comm_start: int = 0
    comm_end: int = 0

    def entries(self) -> dict[str, Entry]:
        """Durations in ns, and the moments they were taken from. Buckets start before a backward ends, and come after
        that: the overlap is what lies in between."""
        return {
            "forward_compute_time": self.backward_start - self.forward_start,
            "backward_compute_time": self.backward_end - self.backward_start,
            "backward_comm_time": self.comm_end - self.comm_start,
            "backward_compute_comm_overlap_time": self.backward_end - self.comm_start,
            "forward_compute_time_start": self.forward_start,
            "backward_compute_time_start": self.backward_start,
            "backward_compute_time_end": self.backward_end,
            "backward_comm_time_start": self.comm_start,
            "backward_comm_time_end": self.comm_end,
        }


_AVERAGED = (
    "forward_compute_time", "backward_compute_time", "backward_comm_time", "backward_compute_comm_overlap_time",
)

#: records an error in the logging data, then raises it
Fail = Callable[[type[Exception], str], NoReturn]


class DDPLogger:
    """Collects the logging data (DDP-144); numbers that change each step are refreshed on sampled iterations only."""

    def __init__(self, construction: Mapping[str, Entry]) -> None:
        self._data: dict[str, Entry] = dict(construction)
        backend = str(construction.get("backend_name", ""))
        for name, variable in {**_ENVIRONMENT, **_ENVIRONMENT_OF.get(backend, {})}.items():
            self._data[name] = os.environ.get(variable, "N/A")
        if backend == "gloo":
            self._data["gloo_num_threads"] = _GLOO_THREADS
        self._data["iteration"] = 0
        self._data["has_rebuilt_buckets"] = 0
        #: iterations lived so far; the logged one lags behind between samples
        self._iterations = 0
        self._sampled = 0
        self.sample_rate = _DEFAULT_SAMPLE_RATE
        self.times = Times()

    def note(self, **entries: Entry) -> None:
        """Add or replace entries."""
        self._data.update(entries)

    def note_parameters(self, specs: Sequence[ParameterSpec]) -> None:
        """Which parameters are averaged, as they are and not as they travel."""
        self.note(
            num_parameter_tensors=len(specs),
            total_parameter_size_bytes=sum(spec.bytes for spec in specs),
            dtypes=", ".join(sorted({dtype_word(spec.dtype) for spec in specs})),
        )

    # the names by which torch's own parts speak to their logger

    def set_error_and_log(self, text: str) -> None:
        """Record an error (DDP-019)."""
        self.note(has_error=1, error=text)

    def fail(self, kind: type[Exception], text: str) -> NoReturn:
        """Record an error, then raise it (DDP-019)."""
        self.set_error_and_log(f"{kind!s}: {text}")
        raise kind(text)

    def _set_uneven_input_join(self) -> None:
        self.note(join_uneven_inputs=1)

    def _set_comm_hook_name(self, name: str) -> None:
        self.note(comm_hook=name)

    def _set_static_graph(self) -> None:
        self.note(static_graph=1)

    def _get_ddp_logging_data(self) -> dict[str, Entry]:
        return dict(self._data)

    # what changes while training

    def note_plan(self, plan: BucketPlan, specs: Sequence[ParameterSpec], *, rebuilt: bool) -> None:
        """Record the bucket layout: sizes in bytes, and for a rebuilt one the parameters by bucket."""
        sizes = [sum(specs[index].bytes for index in bucket.parameters) for bucket in plan.buckets]
        text = ", ".join(map(str, sizes))
        if not rebuilt:
            self.note(bucket_sizes=text)
            return
        indices = ", ".join(" ".join(map(str, bucket.parameters)) for bucket in plan.buckets)
        self.note(has_rebuilt_buckets=1, rebuilt_bucket_sizes=text, rebuilt_per_bucket_param_indices=indices)

    def samples_step(self) -> bool:
        """A synchronised backward has delivered; whether this iteration is sampled, so that ``note_step`` is due."""
        iteration = self._iterations
        self._iterations += 1
        return not (iteration > _EARLY_ITERATIONS and iteration % self.sample_rate != 0)

    def note_step(self, order: Sequence[int], buckets: int, unused_bytes: int, graph_is_static: bool) -> None:
        """Refresh the run-time entries."""
        self._sampled += 1
        timed = self.times.entries()
        for name in _AVERAGED:
            before = int(self._data.get(f"avg_{name}", 0))
            self._data[f"avg_{name}"] = before + (int(timed[name]) - before) // self._sampled
        self.note(
            iteration=self._iterations - 1,
            num_buckets_reduced=buckets,
            unused_parameter_size=unused_bytes,
            can_set_static_graph=int(graph_is_static),
            prev_iteration_grad_ready_order_indices=", ".join(map(str, order)),
            **timed,
        )
