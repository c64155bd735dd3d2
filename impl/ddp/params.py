"""Which parameters and buffers a DDP object manages, what they are called, and whether all ranks hold the same."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import torch
from torch import nn

from ..comm import collectives
from ..comm.averaging import gradient_dtype
from ..comm.ranks import GroupRank, Team
from .log import Fail
from .plan import BucketCaps, ParameterSpec

_IGNORE_LIST = "_ddp_params_and_buffers_to_ignore"  # set on the module; torch's own name, so that lists carry over


def ignored_names(module: nn.Module) -> set[str]:
    """Names that the user excluded, as ``named_parameters`` spells them.

    A root-level name may be listed as "weight" or ".weight"; both mean the same tensor here (DDP-151). A tensor that is
    ignored under one of its names is ignored under all of them (DDP-154). TypeError if this is no module.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"DistributedDataParallel wraps a torch.nn.Module, and {module!r} is not one.")
    listed = {name.removeprefix(".") for name in getattr(module, _IGNORE_LIST, ())}
    tensors = {id(tensor) for name, tensor in _all_names(module) if name in listed}
    return listed | {name for name, tensor in _all_names(module) if id(tensor) in tensors}


def named_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """All parameters under all their names.

    Not by the module's own method, which may take other arguments, or leave parameters out for an optimizer's sake.
    """
    return nn.Module.named_parameters(module, remove_duplicate=False)


def _all_names(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from named_parameters(module)
    yield from nn.Module.named_buffers(module, remove_duplicate=False)


def ignore(module: nn.Module, names: Iterable[str]) -> None:
    """Exclude the named parameters and buffers of ``module`` from everything DDP does (DDP-149, DDP-150)."""
    chosen = list(names)
    setattr(module, _IGNORE_LIST, chosen)
    plain = {name.removeprefix(".") for name in chosen}
    for name, tensor in _all_names(module):
        if name in plain:
            tensor._ddp_ignored = True  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Managed:
    """One managed parameter: its name in the module, and whether its gradient will be sparse."""

    name: str
    parameter: nn.Parameter
    sparse: bool

    @property
    def trained(self) -> bool:
        """Whether it takes gradients. What a program writes into a frozen one in each forward may have a graph."""
        return self.parameter.requires_grad and self.parameter.is_leaf


def managed_parameters(module: nn.Module, ignored: Collection[str]) -> list[Managed]:
    """All parameters that are ignored under none of their names, each once, in registration order; frozen ones, too."""
    left_out = {id(p) for name, p in named_parameters(module) if name in ignored}
    embeddings = [child for child in module.modules() if isinstance(child, (nn.Embedding, nn.EmbeddingBag))]
    sparse_owners = {id(child.weight) for child in embeddings if child.sparse}
    return [
        Managed(name, parameter, id(parameter) in sparse_owners)
        for name, parameter in nn.Module.named_parameters(module)
        if id(parameter) not in left_out
    ]


def replaced(module: nn.Module, specs: Sequence[ParameterSpec], parameters: Sequence[nn.Parameter]) -> list[int]:
    """Indices of the parameters in whose places the module trains others now (DDP-034)."""
    held = {name: each for name, each in named_parameters(module) if each.requires_grad}
    places = zip(specs, parameters, strict=True)
    return [spec.index for spec, parameter in places if held.get(spec.name, parameter) is not parameter]


def added(module: nn.Module, ignored: Collection[str], known: Iterable[nn.Parameter]) -> set[str]:
    """Names of the parameters that the module trains and that are neither known nor ignored."""
    kept = set(map(id, known))
    return {
        item.name
        for item in managed_parameters(module, ignored)
        if item.trained and id(item.parameter) not in kept
    }


def specs_of(managed: Sequence[Managed]) -> list[ParameterSpec]:
    """What bucket planning needs to know of parameters' gradients, indexed by their place in the list."""
    return [
        ParameterSpec(index, item.name, parameter.numel(), gradient_dtype(parameter), parameter.device, item.sparse)
        for index, item in enumerate(managed)
        for parameter in (item.parameter,)
    ]


def respecified(specs: Sequence[ParameterSpec], parameters: Sequence[nn.Parameter]) -> list[ParameterSpec]:
    """The same as the parameters are now, should they have been moved, cast or given another size since."""
    return [
        replace(spec, numel=parameter.numel(), dtype=gradient_dtype(parameter), device=parameter.device)
        for spec, parameter in zip(specs, parameters, strict=True)
    ]


def check_gradient_dtypes(specs: Sequence[ParameterSpec], parameters: Sequence[nn.Parameter], fail: Fail) -> None:
    """RuntimeError where gradients will have another dtype than their buckets, which would round them silently."""
    for spec, parameter in zip(specs, parameters, strict=True):
        chosen = getattr(parameter, "grad_dtype", parameter.dtype)
        if chosen not in (parameter.dtype, spec.dtype):
            fail(
                RuntimeError,
                f"{spec.name}.grad_dtype is {chosen}, but its gradient is averaged in {spec.dtype}. Usual cause: it "
                "was set after the model was wrapped, or to None, which allows any. Set it to the dtype in which "
                "gradients are to be kept and averaged before wrapping the model.",
            )


# -- are all ranks alike?


def verify_alike(
    team: Team, settings: dict[str, object], parameters: Sequence[Managed], buffers: dict[str, torch.Tensor],
    caps: BucketCaps, device: torch.device, fail: Fail,
) -> tuple[BucketCaps, int | None]:
    """RuntimeError on every rank, naming the first difference and the ranks, unless all ranks describe the same model.

    Compared are number, order, names, shapes, dtypes and strides of parameters and buffers, and the settings that
    decide which collectives are made. Sizes of buckets need not be equal: returned are those of rank 0, which hold for
    all, and a number of rank 0's by which all know the model from others on the group. Collective, unless the rank is
    alone: one small all-gather; only to explain a difference, or to bring other sizes, does one rank describe what it
    has to the others.
    Keeps DDP-027, DDP-028, DDP-030 and exceeds DDP-029, DDP-031, DDP-032.
    """
    if team.size == 1:
        return caps, None
    lines = [f"setting {name}={value}" for name, value in settings.items()]
    lines += [f"parameter {index} {_describe(p.name, p.parameter)}" for index, p in enumerate(parameters)]
    lines += [f"buffer {index} {_describe(name, buffer)}" for index, (name, buffer) in enumerate(buffers.items())]
    own = digest(lines) + digest(caps.sizes_bytes) + len(parameters).to_bytes(_NUMBER, "big")
    own += team.tally.started.to_bytes(_NUMBER, "big")  # more with each model
    rows = _gathered(team, own, device)
    others = [rank for rank, row in enumerate(rows) if row[:_DIGEST] != rows[0][:_DIGEST]]
    if others:
        counts = [int.from_bytes(row[2 * _DIGEST : -_NUMBER], "big") for row in rows]
        fail(RuntimeError, _difference(team, lines, others, counts, device))
    if any(row[:-_NUMBER] != rows[0][:-_NUMBER] for row in rows):
        caps = BucketCaps(collectives.broadcast_object(team, caps.sizes_bytes, GroupRank(0), device, "bucket sizes"))
    return caps, int.from_bytes(rows[0][-_NUMBER:], "big")


_DIGEST = 32  # bytes of a SHA-256
_NUMBER = 8  # of a count


def digest(items: Iterable[object]) -> bytes:
    """The same for items that read alike, in their order."""
    return hashlib.sha256("\n".join(map(str, items)).encode()).digest()


def _gathered(team: Team, own: bytes, device: torch.device) -> list[bytes]:
    """Every rank's bytes, in rank order; equally many on each."""
    part = torch.frombuffer(bytearray(own), dtype=torch.uint8).to(device)
    whole = part.new_empty(part.numel() * team.size)
    collectives.all_gather(team, whole, part, "model digests").wait()
    return [bytes(row) for row in whole.cpu().view(team.size, -1).tolist()]


def _describe(name: str, tensor: torch.Tensor) -> str:
    trained = ", requires grad" if tensor.requires_grad else ""
    if tensor.requires_grad and gradient_dtype(tensor) is not tensor.dtype:
        trained += f" in {gradient_dtype(tensor)}"
    return f"{name}: shape {tuple(tensor.shape)}, {tensor.dtype}, strides {tensor.stride()}{trained}"


def _difference(
    team: Team, lines: Sequence[str], others: Sequence[int], counts: Sequence[int], device: torch.device
) -> str:
    """The error's text. Two ranks describe their models, whatever the number of ranks: rank 0 and the first other."""
    if len(set(counts)) > 1:
        found = ", ".join(f"group rank {rank} has {count} params" for rank, count in enumerate(counts))
        what = f"the ranks hold different numbers of parameters: {found}"
    else:
        right, wrong = (
            collectives.broadcast_object(team, lines, GroupRank(rank), device, "model description")
            for rank in (0, others[0])
        )
        odd, mine = (team.rank, lines) if team.rank in others else (others[0], wrong)
        both = zip_longest(right, mine, fillvalue="nothing")
        differing = next((pair for pair in both if pair[0] != pair[1]), None)
        if differing is None:
            return (
                "DDP compares the models of all ranks when it is constructed: their digests on group rank 0 and group "
                f"rank(s) {list(others)} differ, though rank 0 and rank {odd} describe the same model. "
                "Usual cause: a message damaged on its way, by a process group or a network, or a collective of the "
                "program's own that ran into this one."
            )
        what = (
            f"group rank 0 has [{differing[0]}], but group rank(s) {list(others)} differ: rank {odd} has "
            f"[{differing[1]}]"
        )
    return (
        f"DDP expects the same model in all processes, but {what}. Usual cause: the model was built from settings that "
        "depend on the rank, or layers were registered in another order. Build the same model with the same settings "
        "on every rank."
    )
