"""Defects of area ddp: ignored parameters and buffers."""

from __future__ import annotations

from ..planting import defect, edit


@defect("DDP-150")
def ignored_buffers_not_marked() -> None:
    """Only parameters get the mark of being ignored, buffers do not."""
    edit("in _all_names(module):", "in module.named_parameters():")


@defect("DDP-149")
def ignored_parameters_broadcast() -> None:
    """Ignored parameters are made equal to rank 0's at the start."""
    edit("[*(item.parameter for item in managed)", "[*module.parameters()")


@defect("DDP-149")
def ignored_parameters_reduced() -> None:
    """Ignored parameters are averaged like others."""
    edit(
        "params.managed_parameters(module, config.ignored)",
        "params.managed_parameters(module, set())",
        within="reducer_of",
    )


@defect("DDP-152")
def lists_ignored_parameters() -> None:
    """The listing of managed parameters lists the ignored ones too."""
    edit('if not getattr(parameter, "_ddp_ignored", False):', "if parameter is not None:")


@defect("DDP-150")
def unknown_ignored_names_refused() -> None:
    """A name on the ignore list that the module does not have is refused."""
    edit(
        "    for name, tensor in _all_names(module):",
        "    unknown = plain - {name for name, _ in _all_names(module)}\n"
        "    if unknown:\n"
        '        raise ValueError(f"the module has no {unknown}")\n'
        "    for name, tensor in _all_names(module):",
    )


@defect("DDP-150")
def names_are_marked_by_their_ending() -> None:
    """Whatever ends like an ignored name is marked as ignored."""
    edit("if name in plain:", "if name.endswith(tuple(plain)):")


@defect("DDP-149")
def names_are_ignored_by_their_ending() -> None:
    """Whatever ends like an ignored name is ignored."""
    edit("_all_names(module) if name in listed}", "_all_names(module) if name.endswith(tuple(listed))}")


@defect("DDP-154")
def shared_tensors_are_ignored_by_the_listed_name_only() -> None:
    """A tensor with two names is left alone under the listed one only."""
    edit("return listed | {name for name, tensor in _all_names(module) if id(tensor) in tensors}", "return listed")


@defect("DDP-010", "DDPJ-001")
def ignored_parameters_count_for_the_device() -> None:
    """Where a model lives is asked of its ignored parameters, too."""
    edit("everything = [*managed, *delayed]", "everything = list(module.parameters())", within="place")
