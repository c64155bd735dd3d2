"""What the reducer says when a backward did not go as it must: what happened, the usual cause, what to do."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch.distributed as dist

from .plan import ParameterSpec

_NAMES_SHOWN = 20  # unless the debug level asks for all


COMPILED_BACKWARD = (
    "Compiled autograd is not compatible with DistributedDataParallel: gradients are reduced by hooks, which run while "
    "the backward does. Compile the module or its forward (torch.compile), and let the backward run as it is."
)


PAST_THE_WRAPPER = (
    "A backward has accumulated gradients of this model's parameters without a forward through "
    "DistributedDataParallel, so they stay local to this rank and are not averaged. Usual cause: a method of the "
    "wrapped module called through the wrapper, such as model.training_loss(batch), or model.module(batch). Call the "
    "wrapper itself, model(batch), and that method from the module's forward; where local gradients are meant, put the "
    "iteration into model.no_sync()."
)


STEPPED_ALREADY = (
    "A backward that went past the outputs of this forward has been reduced, and the hook that overlaps the optimizer "
    "has stepped with it, so this one, through the outputs, would be a second step of the same iteration. Usual cause: "
    "a penalty on the weights whose backward is called by itself, before that of the loss. Call backward once, on the "
    "sum: (loss + penalty).backward()."
)

MODEL_GONE = (
    "The DistributedDataParallel object whose forward made this graph is gone, so nobody averages the gradients: they "
    "would differ between ranks. Keep a reference to it until the backward has ended, as in model = "
    "DistributedDataParallel(...); loss = model(x).sum(); loss.backward()."
)

INSIDE_THE_FORWARD = (
    "A backward that the wrapped module's forward calls by itself has accumulated gradients of the model's parameters, "
    "and its outputs have no graph: DistributedDataParallel averages in a backward after the forward, so these would "
    "stay local to this rank. Return the loss and call backward on it; where local gradients are meant, put the "
    "iteration into model.no_sync()."
)


COPIES_CHANGED = (
    "Parameters have changed while they held low-precision copies, between a forward with mixed precision and its "
    "backward; the change is lost, and the full values from before it are back. Usual cause: an optimizer's step after "
    "a forward that records gradients and has no backward, such as an evaluation. Evaluate under torch.no_grad()."
)


def describe_unfinished(
    specs: Sequence[ParameterSpec], missing: Sequence[int], rank: int, started: int, *, static: bool
) -> str:
    """A backward ended with gradients missing, and the next forward is here (DDP-062, DDP-106, DDP-146)."""
    quiet = dist.get_debug_level() == dist.DebugLevel.OFF
    shown = missing[:_NAMES_SHOWN] if quiet else missing
    text = (
        "Expected to have finished reduction in the prior iteration. "
        f"Parameter indices which did not receive grad for rank {rank}: {' '.join(map(str, shown))}. "
        f"By name, what did not receive grad for rank {rank}: {', '.join(specs[index].name for index in shown)}. "
        f"({len(missing)} in all; {started} bucket(s) had been started.) "
    )
    if quiet:
        text += (
            f"At most {_NAMES_SHOWN} are shown; to see all of them, set the environment variable "
            "TORCH_DISTRIBUTED_DEBUG to either INFO or DETAIL. "
        )
    if static:
        return text + (
            "These parameters received a gradient in the first iteration, and static_graph=True promises that every "
            "iteration uses the same ones. Turn static_graph off if your graph changes."
        )
    return text + (
        "Usual cause: they, or outputs that depend on them, did not take part in the loss. Remedies: let the `forward` "
        "function outputs participate in calculating loss; or build the model with find_unused_parameters, that is "
        "passing the keyword argument `find_unused_parameters=True`, or with static_graph=True if it is always the "
        "same ones that are unused."
    )


def describe_second_arrival(
    spec: ParameterSpec, rank: int, *, taken_as_unused: bool, skipped: bool, static: bool
) -> str:
    """A parameter received a gradient that nobody expected any more (DDP-069, DDP-070, DDP-103, DDP-106, DDP-116).

    ``skipped``: it is left out of all reductions since no rank used it.
    """
    if static:
        return (
            f"Your training graph has changed in this iteration: parameter {spec.index} ({spec.name}) on group rank "
            f"{rank} received more gradients than in the first backward. static_graph=True promises that every "
            "iteration uses the same parameters in the same way. Turn it off if your graph changes; where several "
            "backwards follow one forward, go backward once, from the sum of their losses."
        )
    if skipped:
        why = "it is left out of reductions since an iteration in which no rank used it"
        advice = (
            "skip_all_reduce_unused_params=True asks for the same unused parameters throughout training. Turn it off "
            "if iterations differ; find_unused_parameters=True alone allows that."
        )
    elif taken_as_unused:
        why = "it had been taken to be unused in this iteration"
        advice = (
            "Usual cause: forward returns its outputs inside an object that cannot be searched for tensors, a "
            "reentrant checkpoint hides part of the graph, or a second backward goes further than the first. Return "
            "tensors, lists, tuples, dicts or dataclasses, checkpoint with use_reentrant=False, go backward once from "
            "the sum of the losses, or turn find_unused_parameters off."
        )
    else:
        why = "it had already received its gradient of this backward"
        advice = (
            "Usual cause: several reentrant checkpoints of one layer, or a parameter reached by more than one backward "
            "pass of the same forward. Checkpoint with use_reentrant=False, or pass static_graph=True if the graph "
            "does not change between iterations."
        )
    return (
        f"Expected to mark a variable ready only once. Parameter at index {spec.index} with name {spec.name} on group "
        f"rank {rank} has been marked as ready twice: {why}. {advice}"
    )


def describe_unnoticed(specs: Sequence[ParameterSpec], missing: Sequence[int], rank: int) -> str:
    """A backward reached parameters through no output, not all of them, and the next forward is here (DDP-062)."""
    names = ", ".join(specs[index].name for index in missing[:_NAMES_SHOWN]) or "none"
    return (
        "Expected to have finished reduction in the prior iteration, but nothing told of its beginning: the last "
        f"backward on rank {rank} went through no output of the forward (a penalty on gradients alone, say), and its "
        f"gradients stayed local. Parameters which did not receive grad: {names}. Let the loss depend "
        "on an output as well (`+ 0 * output.sum()`), and on every parameter or with find_unused_parameters=True."
    )


def describe_added(names: Collection[str]) -> str:
    """Parameters have been put into the module after it was wrapped (DDP-033)."""
    shown = ", ".join(sorted(names)[:_NAMES_SHOWN])
    return (
        f"Parameters that were put into the module after it was wrapped: {shown} ({len(names)} in all). Their "
        "gradients stay local to this rank and are not averaged. Usual cause: adapters, heads or parametrizations that "
        "come late, or another module as `.module`. Put them in before wrapping, or wrap the model again."
    )


def describe_replaced(specs: Sequence[ParameterSpec], replaced: Sequence[int], rank: int) -> str:
    """A backward went past parameters, in whose places the module holds others (DDP-034)."""
    names = ", ".join(specs[index].name for index in replaced[:_NAMES_SHOWN])
    return (
        f"The last backward on rank {rank} went past parameters that DDP averages, since {names} "
        f"({len(replaced)} in all) were replaced in the module after it was wrapped: the gradients of the new ones "
        "stayed local. Change parameters in place (`with torch.no_grad(): parameter.copy_(...)`), or wrap the model "
        "again after replacing them."
    )
