"""Which parameters a backward pass from the given outputs can reach."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch


def reachable_parameters(outputs: Iterable[torch.Tensor], index_of: Mapping[Any, int]) -> set[int]:
    """Indices of the parameters in the autograd graph behind ``outputs``.

    ``index_of`` maps managed parameters (by identity) to their index. Walks the graph once, without recursion.
    """
    found: set[int] = set()
    stack = [output.grad_fn for output in outputs if output.grad_fn is not None]
    found.update(index_of[output] for output in outputs if output.grad_fn is None and output in index_of)
    seen = set(stack)
    while stack:
        node = stack.pop()
        variable = getattr(node, "variable", None)  # only the nodes that accumulate into leaves have one
        if variable is not None and variable in index_of:
            found.add(index_of[variable])
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return found
