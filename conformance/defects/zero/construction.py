"""Defects of area zero: construction."""

from __future__ import annotations

from ..planting import defect, edit


@defect("ZERO-002")
def bare_tensor_is_a_list_of_rows() -> None:
    """A bare tensor is taken for the list of its rows."""
    edit("if isinstance(params, torch.Tensor):", "if params is None:")


@defect("ZERO-005")
def counterpart_is_always_sgd() -> None:
    """A functional optimizer is replaced by SGD, whichever it is."""
    edit(
        '    name = getattr(optimizer_class, "__name__", "")\n',
        "    if overlap:\n        return torch.optim.SGD\n"
        '    name = getattr(optimizer_class, "__name__", "")\n',
    )


@defect("ZERO-004")
def device_types_are_not_compared() -> None:
    """Parameters on different types of device are not refused."""
    edit('            ("device type", parameter.device.type, first.device.type),\n', "")


@defect("ZERO-004")
def dtypes_are_compared_within_a_group() -> None:
    """Parameters are compared with those of their own group only, so two groups may differ in dtype."""
    edit("    check_alike(everything)\n", '    for group in groups:\n        check_alike(group["params"])\n')


@defect("ZERO-003")
def empty_list_is_refused_late() -> None:
    """An empty parameter list is an IndexError."""
    edit("if not everything:\n        raise ValueError(", "if not everything:\n        raise IndexError(")


@defect("ZERO-005")
def functional_optimizer_without_overlap_is_let_in() -> None:
    """A functional optimizer is replaced by its counterpart without overlap too."""
    edit("if not overlap:", "if overlap is None:")


@defect("ZERO-003")
def group_without_parameters_is_a_key_error() -> None:
    """A group dictionary without its parameters fails with a bare KeyError."""
    edit('if "params" not in group:', "if not group:")


@defect("ZERO-006")
def ignored_views_are_not_spoken_of() -> None:
    """Bucket views are ignored in overlap mode without a word."""
    edit("logger.warning(", "logger.debug(", within="__init__")


@defect("ZERO-004")
def mixed_dtypes_are_a_type_error() -> None:
    """Parameters of different dtypes are refused with a TypeError."""
    edit(
        "if mine != theirs:\n                raise ValueError(",
        "if mine != theirs:\n                raise TypeError(",
    )


@defect("ZERO-002")
def mixture_is_let_in() -> None:
    """A list that begins with a tensor is taken for a list of tensors."""
    edit("if all(isinstance(item, torch.Tensor) for item in items):", "if isinstance([*items, 0][0], torch.Tensor):")


@defect("ZERO-004")
def sparse_parameters_are_let_in() -> None:
    """Sparse parameters are not refused."""
    edit("if parameter.layout != torch.strided:", "if parameter.layout is None:")


@defect("ZERO-006")
def views_are_used_with_overlap() -> None:
    """Bucket views are not ignored in overlap mode: the parameters are moved all the same."""
    edit(
        "        if parameters_as_bucket_view:\n",
        "        if parameters_as_bucket_view:\n"
        "            self.parameters_as_bucket_view = True\n"
        "            self.shard.look_at_trainability()\n"
        "            Publisher(self.shard, True).transfers()\n",
    )


@defect("ZERO-006")
def views_with_overlap_are_refused() -> None:
    """Bucket views together with overlap are an error instead of a warning."""
    edit("logger.warning(", "raise ValueError(", within="__init__")


@defect("ZERO-001")
def leaves_that_are_no_parameters_are_refused() -> None:
    """Tensors that are no Parameters count as no tensors at all."""
    edit(
        "if all(isinstance(item, torch.Tensor) for item in items):",
        "if all(isinstance(item, torch.Tensor) and type(item) is not torch.Tensor for item in items):",
    )


@defect("ZERO-007")
def what_lies_between_counts_as_shared() -> None:
    """Whether two parameters share memory is looked at as if both began at the same place."""
    edit("marks.as_strided(other.size(), other.stride(), apart)", "marks.as_strided(other.size(), other.stride())")


@defect("ZERO-006")
def every_overlapping_optimizer_warns_of_bucket_views() -> None:
    """Bucket views are said to be ignored though nobody has asked for them."""
    within = "ZeroRedundancyOptimizer.__init__"
    edit("        if parameters_as_bucket_view:", "        if overlap_with_ddp:", within=within)
