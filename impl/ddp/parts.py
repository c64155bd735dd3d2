"""How a DDP object begins: the ranks are made alike, and the parts that reduce are built as its config asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from ..comm.collectives import broadcast_coalesced
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
    chunk_bytes: int,
    fail: Fail,
    *,
    static_graph: bool,
) -> DDPConfig:
    """Compare the ranks' models, then take over that of group rank 0 and its bucket sizes (DDP-025).

    ``late``: parameters that are reduced late, by name; they are compared with the others, and sent by themselves.
    """
    buffers = managed_buffers(module, config.ignored) if config.sync_buffers_at_start else {}
    for name, buffer in buffers.items():
        if buffer.layout != torch.strided or buffer.is_quantized:
            kind = "a quantized tensor" if buffer.is_quantized else f"a sparse tensor ({buffer.layout})"
            fail(
                RuntimeError,
                f"Buffer {name} is {kind}, which cannot be broadcast. Keep it as an attribute that is no buffer, or "
                "leave it out by _set_params_and_buffers_to_ignore_for_model.",
            )
    settings = {"static_graph": static_graph, **config.deciding_collectives()}
    compared = [*managed, *(params.Managed(name, parameter, sparse=False) for name, parameter in late.items())]
    caps = params.verify_alike(team, settings, compared, buffers, config.caps, config.placement.device, fail)
    state = [item.parameter for item in managed] + list(buffers.values())
    broadcast_coalesced(team, [tensor.detach() for tensor in state], GroupRank(0), "initial model", chunk_bytes)
    return replace(config, caps=caps)


def lowered(module: nn.Module, config: DDPConfig) -> MixedPrecisionRun | None:
    """What runs the module in lower precision, if that is asked for."""
    if config.mixed_precision is None:
        return None
    return MixedPrecisionRun(module, config.ignored, config.mixed_precision)


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
    reducer = Reducer(
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
    log.note_plan(reducer.plan, specs, rebuilt=False)
    return reducer
