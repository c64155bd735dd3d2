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
    return {index_of[leaf] for leaf in leaves_behind(nodes) if leaf in index_of}


def leaves_behind(nodes: Iterable[torch.autograd.graph.Node]) -> dict[torch.Tensor, torch.autograd.graph.Node]:
    """The nodes behind these that add to the gradients of leaves, by leaf."""
    found: dict[torch.Tensor, torch.autograd.graph.Node] = {}
    stack = list(nodes)
    seen = set(stack)
    while stack:
        node = stack.pop()
        edges = node.next_functions
        if not edges and (variable := getattr(node, "variable", None)) is not None:  # it accumulates into a leaf
            found[variable] = node
        for following, _ in edges:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return found
