"""How a DDP object begins: the ranks are made alike, and the parts that reduce are built as its config asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from ..comm.collectives import broadcast_coalesced
from ..comm.flat import copy_all
from ..comm.ranks import GroupRank, Team
from . import params
from .buffers import managed_buffers
from .config import DDPConfig
from .iteration import Iteration
from .log import DDPLogger, Fail
from .mixed_precision import MixedPrecisionRun
from .reducer import Reducer
from .reduction import Transport


def synchronise_start(
    team: Team,
    module: nn.Module,
    config: DDPConfig,
    managed: Sequence[params.Managed],
    late: Mapping[str, nn.Parameter],
    fail: Fail,
    *,
    static_graph: bool,
) -> DDPConfig:
    """Compare the ranks' models, then take over that of group rank 0 and its bucket sizes (DDP-025).

    ``late``: parameters that are reduced late, by name; they are compared with the others, and sent by themselves.
    """
    buffers = managed_buffers(module, config.ignored) if config.sync_buffers_at_start else {}
    compared = [*managed, *(params.Managed(name, parameter, sparse=False) for name, parameter in late.items())]
    sent: dict[str, torch.Tensor] = {f"Parameter {item.name}": item.parameter for item in compared}
    sent |= {f"Buffer {name}": buffer for name, buffer in buffers.items()}
    for name, tensor in sent.items():
        if kind := _unsendable_kind(tensor):
            fail(
                RuntimeError,
                f"{name} is {kind}, which cannot be broadcast. Keep it as a plain attribute, or leave it out by "
                "_set_params_and_buffers_to_ignore_for_model; where a mesh shards layers, pass the dimension of "
                "replicas as device_mesh.",
            )
    settings = {"static_graph": static_graph, **config.deciding_collectives()}
    caps, number = params.verify_alike(team, settings, compared, buffers, config.caps, config.placement.device, fail)
    state = [*(item.parameter for item in managed), *buffers.values()]
    broadcast_coalesced(team, state, GroupRank(0), "initial model")
    return replace(config, caps=caps, number=number)


def _unsendable_kind(tensor: torch.Tensor) -> str | None:
    """What a tensor is that cannot be packed for sending: all ranks must know, since the source alone would meet it."""
    if tensor.is_quantized:
        return "a quantized tensor"
    if tensor.layout != torch.strided:
        return f"a sparse tensor ({tensor.layout})"
    if type(tensor) not in (torch.Tensor, nn.Parameter):
        try:
            copy_all([torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)], [tensor.detach()])
        except (RuntimeError, TypeError):
            return f"a {type(tensor).__name__}"
    return None


def reducer_of(
    module: nn.Module, config: DDPConfig, iteration: Iteration, lowered: MixedPrecisionRun | None
) -> Reducer:
    """The reducer of the parameters that are trained, with a logger."""
    managed = params.managed_parameters(module, config.ignored)
    trained = [item for item in managed if item.parameter.requires_grad]
    specs = params.specs_of(trained)
    log = DDPLogger(config.log_entries(module, iteration.team.group))
    log.note_parameters(specs)
    if lowered is not None:
        specs = lowered.reduced_specs(specs)
    return Reducer(
        module,
        [item.parameter for item in trained],
        specs,
        Transport(iteration),
        config.caps,
        log,
        find_unused=config.find_unused_parameters,
        as_view=config.as_view,
        skip_unused=config.skip_all_reduce_unused_params,
        lowered=lowered,
        frozen=[item for item in managed if not item.parameter.requires_grad],
    )
