"""Which parameters a backward pass from given outputs can reach: a search of the autograd graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch


@torch.autograd.profiler.record_function("torch.distributed.ddp.reducer::search_unused_parameters")
def reachable_parameters(outputs: Sequence[torch.Tensor], index_of: Mapping[Any, int]) -> set[int]:
    """Indices of the parameters in the autograd graph behind ``outputs``.

    ``index_of`` maps managed parameters (by identity) to their index. Profiles show this under the name that torch's
    search has there.
    """
    found = {index_of[output] for output in outputs if output.grad_fn is None and output in index_of}
    return found | parameters_behind([output.grad_fn for output in outputs if output.grad_fn is not None], index_of)


def parameters_behind(nodes: Iterable[torch.autograd.graph.Node], index_of: Mapping[Any, int]) -> set[int]:
    """Indices of the parameters whose gradients a full backward through these nodes of the graph accumulates."""
    return set(accumulators_behind(nodes, index_of))


def accumulators_behind(
    nodes: Iterable[torch.autograd.graph.Node], index_of: Mapping[Any, int]
) -> dict[int, torch.autograd.graph.Node]:
    """The nodes behind these that add to the gradients of parameters, by those parameters' indices."""
    found: dict[int, torch.autograd.graph.Node] = {}
    stack = list(nodes)
    seen = set(stack)
    while stack:
        node = stack.pop()
        variable = getattr(node, "variable", None)  # only the nodes that accumulate into leaves have one
        if variable is not None and variable in index_of:
            found[index_of[variable]] = node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return found
