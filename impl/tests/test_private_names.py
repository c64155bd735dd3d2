"""Names that torch does not promise to keep: used in few places, and all there in the installed torch."""

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch.distributed.optim import apply_optimizer_in_backward
from torch.nn.parallel import DistributedDataParallel, replicate

import impl

ROOT = Path(impl.__file__).parent
KNOWN_PLACES = {
    "comm/flat.py", "comm/futures.py", "comm/local_groups.py", "comm/ranks.py", "comm/store.py", "ddp/kernels.py",
    "zero/optimizer.py",
}  # fmt: skip
#: what is reached on objects, where a file does not tell whose they are, and marks that torch's code sets or looks for
ON_OBJECTS = {
    "_base": torch.Tensor, "_indices": torch.Tensor, "_nnz": torch.Tensor, "_values": torch.Tensor,
    "_version": torch.Tensor,
    "_buffers": torch.nn.Module, "_modules": torch.nn.Module, "_compiled_call_impl": torch.nn.Module,
    "_get_root_mesh": dist.DeviceMesh, "_get_sequence_number_for_group": dist.ProcessGroup,
    "_optimizer_": torch.optim.Optimizer, "_optimizer_step_pre_hooks": torch.optim.Optimizer,
    "_optimizer_step_post_hooks": torch.optim.Optimizer, "_optimizer_load_state_dict_pre_hooks": torch.optim.Optimizer,
    "_opt_called": torch.optim.lr_scheduler, "_in_backward_optimizers": apply_optimizer_in_backward,
    "_ddp_ignored": DistributedDataParallel, "_ddp_params_and_buffers_to_ignore": DistributedDataParallel,
    "_former_parameters": replicate, "_Functional": dist.optim,
    "_context_id": torch._C._distributed_autograd.DistAutogradContext,
}  # fmt: skip
#: private to nobody: methods of named tuples, and a key of our own pickles
NOBODYS = {"_fields", "_replace", "_delayed_names"}


def is_private(dotted: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in dotted.split("."))


def private_names(source: str) -> set[str]:
    """Every name of torch with an underscore that a file imports or reaches through what it imports."""
    tree = ast.parse(source)
    known = dict(imported_from_torch(tree))
    chains = {dotted for node in ast.walk(tree) if (dotted := chain(node, known))}
    longest = {one for one in chains if not any(other.startswith(f"{one}.") for other in chains)}
    return {dotted for dotted in {*longest, *known.values()} if is_private(dotted)}


def imported_from_torch(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """What a file calls the parts of torch that it imports, and their full names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] == "torch":
                    yield (name.asname, name.name) if name.asname else ("torch", "torch")
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "torch":
            for name in node.names:
                yield name.asname or name.name, f"{node.module}.{name.name}"


def chain(node: ast.AST, known: dict[str, str]) -> str | None:
    """``torch.a.b`` for an attribute of an attribute of torch; None for anything else."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        before = chain(node.value, known)
        return f"{before}.{node.attr}" if before else None
    return None


def reached_names(tree: ast.Module) -> set[str]:
    """Private names that a file reaches on objects, or holds as texts, but for those that begin at torch itself."""
    known = dict(imported_from_torch(tree))
    nodes = list(ast.walk(tree))
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute) and chain(node, known) is None}
    names |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {name for name in names if name.isidentifier() and is_private(name)}


def own_names(tree: ast.Module) -> set[str]:
    """What a file defines: functions, classes, variables, attributes of ``self``."""
    found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    stored = [node for node in ast.walk(tree) if isinstance(getattr(node, "ctx", None), ast.Store)]
    found |= {node.id for node in stored if isinstance(node, ast.Name)}
    attributes = [node for node in stored if isinstance(node, ast.Attribute)]
    return found | {node.attr for node in attributes if ast.unparse(node.value) == "self"}


SOURCES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in sorted(ROOT.rglob("*.py"))
    if "tests" not in path.parts
}
TREES = [ast.parse(source) for source in SOURCES.values()]
USED = {file: names for file, source in SOURCES.items() if (names := private_names(source))}


def test_they_are_used_in_the_known_places_only():
    assert set(USED) == KNOWN_PLACES, USED


@pytest.mark.parametrize("name", sorted(set().union(*USED.values())))
def test_the_installed_torch_has_it(name):
    parts = name.split(".")
    found = import_module(parts[0])
    for number, part in enumerate(parts[1:], 2):
        # a package may hide its modules, as torch.optim does
        found = getattr(found, part) if hasattr(found, part) else import_module(".".join(parts[:number]))


def test_all_that_is_private_on_objects_is_ours_or_listed():
    reached = set().union(*map(reached_names, TREES))
    foreign = reached - set().union(*map(own_names, TREES)) - NOBODYS
    assert foreign <= set(ON_OBJECTS), "list each with the class or module of torch's that has it"
    assert set(ON_OBJECTS) <= reached, "nothing reaches these any more"


@pytest.mark.parametrize("name", ON_OBJECTS)
def test_the_installed_torch_has_what_is_reached_on_its_objects(name):
    owner = ON_OBJECTS[name]
    assert hasattr(owner, name) or name in inspect.getsource(owner)


def test_the_installed_torch_tells_to_which_parameters_optimizers_are_attached():
    """A name without an underscore that no document mentions; where it is gone, late ones are not noticed."""
    module = import_module("torch.distributed.optim.apply_optimizer_in_backward")
    assert hasattr(module, "param_to_optim_hook_handle_map")


@pytest.mark.parametrize(("source", "names"), [
    ("import torch\ntorch._foreach_copy_([], [])", {"torch._foreach_copy_"}),
    ("import torch\ntorch._C._hidden.thing.size()", {"torch._C._hidden.thing.size"}),
    ("import torch.distributed as dist\ndist.rpc._agent()", {"torch.distributed.rpc._agent"}),
    ("from torch import distributed as dist\ndist.a._b", {"torch.distributed.a._b"}),
    ("from torch._C import thing", {"torch._C.thing"}),
    ("import torch\ntorch.zeros(1)\nself._own\ntorch.Tensor.__len__", set()),
])  # fmt: skip
def test_the_search_for_them_finds_what_it_should(source, names):
    assert private_names(source) == names


def test_the_search_on_objects_finds_attributes_and_texts_and_leaves_chains_out():
    tree = ast.parse("import torch\ntorch._C._hidden\nself._own = rows._nnz()\ngetattr(rows, '_mark')")
    assert reached_names(tree) == {"_nnz", "_mark", "_own"}
    assert own_names(tree) == {"_own"}
