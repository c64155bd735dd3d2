"""What a program trains, as text: the model, its data, and its loss."""

from __future__ import annotations

from collections.abc import Iterator

from .program import Program

DTYPES = {"double": "torch.float64", "half": "torch.float16", "bfloat16": "torch.bfloat16"}

#: uses parameters for which its backward passes None
SILENT = '''
class Silent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, total, weight, bias):
        return total.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None, None
'''

FILL = '''
def fill(model, rank):
    with torch.no_grad():
        for k, p in enumerate(model.parameters()):
            p.copy_((torch.arange(p.numel()).view(p.shape) + k) % 5 / 4 - 0.5 + rank)
'''

WIDER = '''
def keep_wider(modules):
    for p in [p for module in modules for p in module.parameters()]:
        p.grad_dtype = torch.float64 if p.dtype is torch.float32 else torch.float32
'''


#: autograd calls them for parameters without a gradient, too, and with None
PARAMETER_HOOKS = {
    "of gradients": '''
def hook_parameters(model):
    for p in [p for p in model.parameters() if p.requires_grad][::2]:
        p.register_hook(lambda gradient: None if gradient is None else gradient / 2)
''',
    "behind accumulation": '''
def halve(p):
    if p.grad is not None:
        p.grad.mul_(0.5)


def hook_parameters(model):
    for p in [p for p in model.parameters() if p.requires_grad][::2]:
        p.register_post_accumulate_grad_hook(halve)
''',
}

#: named, so that a model with them can be pickled
MODULE_HOOKS = '''
def double(module, inputs, outputs):
    return 2 * outputs


def watch(*_):
    return None
'''

AUTOCASTING = '''
def autocasting(model, *args, **kwargs):
    with torch.autocast("cpu", torch.bfloat16):
        return model(*args, **kwargs)
'''

#: one that neither a linear layer nor a convolution is like
FURTHER_LAYERS = {
    "recurrent": ("nn.GRU(4, 4)", "self.NAME({}.unsqueeze(1))[0].squeeze(1)"),
    "attention": ("nn.MultiheadAttention(4, 2)", "self.NAME(*[{}.unsqueeze(1)] * 3)[0].squeeze(1)"),
    "weight norm": ("nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))", "self.NAME({})"),
    "spectral norm": ("nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))", "self.NAME({})"),
}

#: rows of a batch
SIZES = {"alike": "2", "of other sizes": "1 + (rank + i) % 3", "sometimes empty": "2 * ((rank + i) % 2)"}


# --- the model --------------------------------------------------------------------------------------------------------


def _nodes(program: Program) -> list[tuple[str, str, str]]:
    """Every layer: name, how it is made, and what it computes of ``{}``; those that feed nothing special."""
    made = [(f"linear{k}", "nn.Linear(4, 4)", "self.NAME({})") for k in range(program.layers)]
    if program["shared"] == "tied":
        made.append(("tied", "nn.Linear(4, 4)", "self.NAME({})"))
    if program["convolution"] != "none":
        form = ".to(memory_format=torch.channels_last)" if program["convolution"] == "channels_last" else ""
        making = f"nn.Conv2d(2, 2, (3, 1), padding=(1, 0)){form}"
        made.append(("conv", making, "self.NAME({}.unflatten(1, (2, 2, 1))).flatten(1)"))
    if program["norm"] != "none":
        made.append(("norm", f"nn.{'BatchNorm1d' if program['norm'] == 'batch' else 'LayerNorm'}(4)", "self.NAME({})"))
    if program["table"] != "none":
        sparse = ", sparse=True" if program["table"] != "dense" else ""
        bag = program["table"] == "sparse bag"
        kind = f'nn.EmbeddingBag(6, 4, mode="sum"{sparse})' if bag else f"nn.Embedding(6, 4{sparse})"
        made.append(("table", kind, "self.NAME(rows.unsqueeze(1))" if bag else "self.NAME(rows)"))
    if program.has("further layer"):
        made.append(("further", *FURTHER_LAYERS[program["further layer"]]))
    if program["frozen"] in ("between blocks", "until the second block"):
        made.append(("freezing", "nn.Linear(4, 4)", "self.NAME({})"))
    if program["frozen"] == "one layer":
        made.append(("frozen", "nn.Linear(4, 4).requires_grad_(False)", "self.NAME({})"))
    if program["frozen"] == "whole numbers":
        made.append(("whole", "nn.Parameter(torch.zeros(4, dtype=torch.int64), False)", "{} + self.NAME"))
        made.append(("flags", "nn.Parameter(torch.zeros(4, dtype=torch.bool), False)", "{} * self.NAME"))
    if program["ignored"] != "none":
        made.append(("ignored", "nn.Linear(4, 4)", "self.NAME({})"))
        made.append(("unignored", "nn.Linear(4, 4)", "self.NAME({})"))  # its name ends with that of the other
    if program["types"] == "mixed":
        made.append(("wide", "nn.Linear(4, 4).double()", "self.NAME({}.double()).float()"))
        made.append(("narrow", "nn.Linear(4, 4).half()", "self.NAME({}.half()).float()"))
    if program["types"] == "complex":
        made.append(("turning", "nn.Linear(4, 4, dtype=torch.complex64)", "self.NAME({}.to(torch.complex64)).real"))
    if program["tensors"] == "many small":
        made += [(f"small{k}", "nn.Parameter(torch.zeros(4))", "self.NAME * {}") for k in range(9)]
    if program["tensors"] == "numbers":
        made += [(f"number{k}", "nn.Parameter(torch.zeros(()))", "self.NAME * {}") for k in range(3)]
    if program["tensors"] == "transposed":
        made += [(f"turned{k}", "nn.Parameter(torch.zeros(4, 3).t())", "{}[:, :3] @ self.NAME") for k in range(9)]
    if program["delayed"] != "none":
        made.append(("late", "nn.Linear(4, 4)", "self.NAME({})"))
    turn = program.order % len(made)
    return made[turn:] + made[:turn]


def model(program: Program) -> str:
    """The class ``Model``."""
    nodes = _nodes(program)
    lines = ["class Model(nn.Module):", "    def __init__(self):", "        super().__init__()"]
    lines += [f"        self.{name} = {making}" for name, making, _ in nodes]
    if program["use"] != "all":
        lines.append("        self.extra = nn.Linear(4, 4)")
    if program["outputs"] == "one outside the loss":
        lines.append("        self.beside = nn.Linear(4, 4)")
    if program["shared"] == "tied":
        lines.append("        self.tied.weight = self.linear0.weight")
    if program["frozen"] == "shared weight":
        lines.append("        self.tied.weight.requires_grad_(False)")
    if program["further layer"] == "spectral norm":  # its buffers begin at random
        lines += [f"        self.further.parametrizations.weight[0].{name}.fill_(0.5)" for name in ("_u", "_v")]
    if program["module hooks"] == "of a layer":
        lines.append("        self.linear0.register_forward_hook(double)")
        lines.append("        self.linear0.register_full_backward_hook(watch)")
    lines += [f"        {line}" for line in _buffers(program)]
    lines += ["", f"    def forward(self, {_signature(program)}):"]
    lines += [f"        {line}" for line in _forward(program, nodes)]
    text = "\n".join(lines) + "\n"
    if program["outputs"] == "dataclass":
        text = "@dataclasses.dataclass\nclass Outputs:\n    first: torch.Tensor\n    second: list\n\n\n" + text
    return text


def _buffers(program: Program) -> list[str]:
    start = {
        "float": "torch.zeros(2)", "integer": "torch.tensor(2**24 + 1)",
        "double": "torch.tensor([2.0**40 + 1], dtype=torch.float64)",
        "replaced": "torch.zeros(2)", "not persistent": "torch.zeros(2)",
    }.get(program["buffers"])  # fmt: skip
    keep = ", persistent=False" if program["buffers"] == "not persistent" else ""
    return [f'self.register_buffer("count", {start}{keep})'] if start else []


def _signature(program: Program) -> str:
    if program["call"] == "container":
        return "batch"
    names = _inputs(program)
    return f"*, {', '.join(names)}" if program["call"] == "keyword" else ", ".join(names)


def _inputs(program: Program) -> list[str]:
    return ["x", *(["rows"] if program["table"] != "none" else []), *(["more"] if _varies(program) else [])]


def _varies(program: Program) -> bool:
    """Whether the data say if the extra layer is used."""
    return program["use"] not in ("all", "without gradient")


def _forward(program: Program, nodes: list[tuple[str, str, str]]) -> Iterator[str]:
    if program["call"] == "container":
        yield from (f'{name} = batch["{name}"]' for name in _inputs(program))
    chained = program["wiring"] == "chained"
    checkpointed = next((name for name, *_ in nodes if name.startswith("linear")), "")
    for place, (name, _, computing) in enumerate(nodes):
        feed = "x"
        if chained and place:
            taken = (program.takes[place % len(program.takes)] if program.takes else place - 1) % place
            feed = f"h{taken}"
        called = computing.replace("NAME", name)
        if program["checkpoint"] in ("once", "twice", "reentrant") and name == checkpointed:
            reentrant = program["checkpoint"] == "reentrant"
            fed = f"{feed}.requires_grad_()" if reentrant else feed  # else nothing in it would be trained
            one = f"checkpoint(self.{name}, {fed}, use_reentrant={reentrant})"
            yield f"h{place} = {one}" + (f" + {one}" if program["checkpoint"] == "twice" else "")
        else:
            yield f"h{place} = {called.format(feed)}"
    yield f"total = {' + '.join(f'h{place}' for place in range(len(nodes)))}"
    if program["use"] == "without gradient":
        yield "total = Silent.apply(total, self.extra.weight, self.extra.bias)"
    if _varies(program):
        yield "if more:"
        yield "    total = total + self.extra(x)"
    yield from _counting(program)
    yield f"return {_returned(program, len(nodes) - 1)}"


def _counting(program: Program) -> Iterator[str]:
    if program["buffers"] == "none":
        return
    yield "if self.training:"
    if program["buffers"] == "replaced":
        yield "    self.count = self.count + x.detach().sum()"
    elif program["buffers"] == "integer":
        yield "    self.count += 2 * x.detach().sum().long() + 1"
    else:
        yield "    self.count += x.detach().sum()"


def _returned(program: Program, last: int) -> str:
    return {
        "one": "total", "tuple": f"total, h{last}", "dictionary": f'{{"a": total, "b": [h{last}]}}',
        "dataclass": f"Outputs(total, [h{last}])", "one outside the loss": "total, self.beside(x)",
    }[program["outputs"]]  # fmt: skip


# --- data and loss ----------------------------------------------------------------------------------------------------


def data(program: Program) -> str:
    """The function ``data``: the batch of a rank in an iteration."""
    cast = {"double": ".double()", "half": ".half()", "bfloat16": ".bfloat16()"}.get(program["types"], ".float()")
    use = {"never": "False", "by rank": "rank == 0", "by iteration": "i % 2 == 0", "by both": "(rank + i) % 2 == 0"}
    lines = [
        "def data(rank, i, again=0):",
        "    drawn = torch.Generator().manual_seed(1000 * rank + 10 * i + again)",
        f"    x = torch.randint(-2, 3, ({SIZES[program['batches']]}, 4), generator=drawn){cast}",
        *(["    x = x.double() if i >= 10 else x"] if program.has("cast") else []),
    ]
    fields = ['"x": x']
    if program["table"] != "none":
        fields.append('"rows": (torch.arange(len(x)) * (3 - rank + i) + rank) % 6')
    if _varies(program):
        fields.append(f'"more": {use[program["use"]]}')
    return "\n".join([*lines, f"    return {{{', '.join(fields)}}}"]) + "\n"


def first(program: Program) -> str:
    """The expression of the first tensor of the outputs."""
    return {
        "one": "outputs", "dictionary": 'outputs["a"]', "dataclass": "outputs.first",
    }.get(program["outputs"], "outputs[0]")  # fmt: skip


def loss(program: Program) -> str:
    """The function ``loss``, of the outputs."""
    total = {
        "one": "outputs.sum()", "tuple": "outputs[0].sum() + outputs[1].sum()",
        "dictionary": 'outputs["a"].sum() + outputs["b"][0].sum()',
        "dataclass": "outputs.first.sum() + outputs.second[0].sum()", "one outside the loss": "outputs[0].sum()",
    }[program["outputs"]]  # fmt: skip
    return f"def loss(outputs):\n    return 12 * ({total})\n"


def call(program: Program, target: str, batch: str, *, repeated: bool = False) -> str:
    """The expression that feeds a batch to a model, under a checkpoint if the forward is to be repeated."""
    given = {"positional": f"*{batch}.values()", "keyword": f"**{batch}", "container": batch}[program["call"]]
    if program.has("autocast"):
        target, given = "autocasting", f"{target}, {given}"
    if repeated:
        target, given = "checkpoint", f"{target}, {given}, use_reentrant=False"
    return f"{target}({given})"


def kept_wider(program: Program) -> list[str]:
    """The modules whose gradients are kept in a wider dtype."""
    named = {"late": program.has("delayed"), "table": program.has("table")}
    return ["model.linear0", *(f"model.{name}" for name, there in named.items() if there)]
