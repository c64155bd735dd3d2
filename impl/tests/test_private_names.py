"""Names that torch does not promise to keep: used in few places, and all there in the installed torch."""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import impl

ROOT = Path(impl.__file__).parent
KNOWN_PLACES = {
    "comm/flat.py", "comm/futures.py", "comm/local_groups.py", "comm/ranks.py", "comm/store.py", "ddp/kernels.py",
    "zero/optimizer.py",
}  # fmt: skip


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


USED = {
    str(path.relative_to(ROOT)): names
    for path in sorted(ROOT.rglob("*.py"))
    if "tests" not in path.parts and (names := private_names(path.read_text(encoding="utf-8")))
}


def test_they_are_used_in_the_known_places_only():
    assert set(USED) == KNOWN_PLACES, USED


@pytest.mark.parametrize("name", sorted(set().union(*USED.values())))
def test_the_installed_torch_has_it(name):
    parts = name.split(".")
    found = import_module(parts[0])
    for number, part in enumerate(parts[1:], 2):
        # a package may hide its modules, as torch.optim does
        found = getattr(found, part) if hasattr(found, part) else import_module(".".join(parts[:number]))


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
