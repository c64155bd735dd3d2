"""A program as plain Python over the public names: what the ranks run, and what a failure is reported as.

The text uses the names that a subject provides (``DistributedDataParallel``, ``Join`` …), ``dist``, ``nn``, ``torch``
and ``look``, which notes what there is to compare.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from .program import Program

LR = 2.0**-6
RATE = 0.5  # by which a schedule multiplies the learning rate after each step
CLIPPED_NORM = 32.0
CLIPPED_VALUE = 16.0
TINY_MIB = 1e-4
_DTYPES = {"double": "torch.float64", "half": "torch.float16", "bfloat16": "torch.bfloat16"}
SETTINGS = {
    "sgd": ("torch.optim.SGD", "lr=2**-6"),
    "momentum": ("torch.optim.SGD", "lr=2**-6, momentum=0.5"),
    "decay": ("torch.optim.SGD", "lr=2**-6, momentum=0.5, weight_decay=2**-2"),
    "adam": ("torch.optim.Adam", "lr=2**-5, eps=2**-3"),  # else a step of what rounding leaves of a zero
    "counting": ("Counting", "lr=2**-6"),
}

COUNTING = '''
class Counting(torch.optim.Optimizer):
    def __init__(self, params, lr):
        self.steps = 0
        super().__init__(params, {"lr": lr, "count": 0})

    @torch.no_grad()
    def step(self, closure=None):
        if closure is not None:
            with torch.enable_grad():
                closure()
        self.steps += 1
        for group in self.param_groups:
            group["count"] += 1
            for p in group["params"]:
                if p.grad is not None:
                    total = self.state[p].setdefault("total", torch.zeros_like(p))
                    total.add_(p.grad, alpha=group["count"] + self.steps)
                    p.sub_(total, alpha=group["lr"])
'''

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

HOOKS = {
    "allreduce": "ddp.register_comm_hook(group, default_hooks.allreduce_hook)",
    "builtin": "ddp._register_builtin_comm_hook(BuiltinCommHookType.ALLREDUCE)",
    "fp16": "ddp.register_comm_hook(group, default_hooks.fp16_compress_hook)",
    "wrapped": "ddp.register_comm_hook(group, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook))",
    "user": "ddp.register_comm_hook(group, averaged)",
    "asynchronous": "ddp.register_comm_hook(group, averaged)",
    "PowerSGD": (
        "ddp.register_comm_hook(\n"
        "    powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=1000), powerSGD_hook.powerSGD_hook\n)"
    ),
    "post-local": (
        "ddp.register_comm_hook(\n"
        "    post_localSGD_hook.PostLocalSGDState(group, group, 1000), post_localSGD_hook.post_localSGD_hook\n)"
    ),
}  # fmt: skip

USERS_HOOKS = {
    "user": '''
def averaged(group, bucket):
    mean = bucket.buffer() / dist.get_world_size(group)
    dist.all_reduce(mean, group=group)
    future = torch.futures.Future()
    future.set_result(mean)
    return future
''',
    "asynchronous": '''
def averaged(group, bucket):
    size = dist.get_world_size(group)
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0] / size)
''',
}


#: A hook before the forward must have ended by then (DDP-171); one after it may return futures (DDP-095).
BUFFER_HOOKS = {
    "before forward": '''
def from_first(group, buffers):
    for b in buffers.values():
        dist.broadcast(b, group=group, group_src=0)
''',
    "after forward": '''
def from_first(group, buffers):
    works = [dist.broadcast(b, group=group, group_src=0, async_op=True) for b in buffers.values()]
    return [work.get_future() for work in works]
''',
}


WIDER = '''
def keep_wider(modules):
    for p in [p for module in modules for p in module.parameters()]:
        p.grad_dtype = torch.float64 if p.dtype is torch.float32 else torch.float32
'''


def source(program: Program) -> str:
    """The whole text: model, data, loss and ``train(rank, look)``."""
    parts = [model(program), FILL, _data(program), _loss(program)]
    if program["use"] == "without gradient":
        parts.insert(0, SILENT)
    if program["optimizer"] == "counting":
        parts.append(COUNTING)
    if program.has("gradient dtype"):
        parts.append(WIDER)
    parts.append(USERS_HOOKS.get(program["hook"], ""))
    parts.append(BUFFER_HOOKS.get(program["buffer hook"], ""))
    parts.append(_train(program))
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


# --- the model --------------------------------------------------------------------------------------------------------


def _nodes(program: Program) -> list[tuple[str, str, str]]:
    """Every layer: name, how it is made, and what it computes of ``{}``; those that feed nothing special."""
    made = [(f"linear{k}", "nn.Linear(4, 4)", "self.NAME({})") for k in range(program.layers)]
    if program["shared"] == "tied":
        made.append(("tied", "nn.Linear(4, 4)", "self.NAME({})"))
    if program["convolution"] != "none":
        form = ".to(memory_format=torch.channels_last)" if program["convolution"] == "channels_last" else ""
        made.append((
            "conv", f"nn.Conv2d(2, 2, (3, 1), padding=(1, 0)){form}", "self.NAME({}.view(2, 2, 2, 1)).reshape(2, 4)",
        ))  # fmt: skip
    if program["norm"] != "none":
        made.append(("norm", f"nn.{'BatchNorm1d' if program['norm'] == 'batch' else 'LayerNorm'}(4)", "self.NAME({})"))
    if program["table"] != "none":
        sparse = ", sparse=True" if program["table"] != "dense" else ""
        bag = program["table"] == "sparse bag"
        kind = f'nn.EmbeddingBag(6, 4, mode="sum"{sparse})' if bag else f"nn.Embedding(6, 4{sparse})"
        made.append(("table", kind, "self.NAME(rows.view(2, 1))" if bag else "self.NAME(rows)"))
    if program["frozen"] == "between blocks":
        made.append(("freezing", "nn.Linear(4, 4)", "self.NAME({})"))
    if program["frozen"] == "one layer":
        made.append(("frozen", "nn.Linear(4, 4).requires_grad_(False)", "self.NAME({})"))
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
        if program["checkpoint"] != "none" and name == checkpointed:
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


def _data(program: Program) -> str:
    cast = {"double": ".double()", "half": ".half()", "bfloat16": ".bfloat16()"}.get(program["types"], ".float()")
    use = {"never": "False", "by rank": "rank == 0", "by iteration": "i % 2 == 0", "by both": "(rank + i) % 2 == 0"}
    lines = [
        "def data(rank, i, again=0):",
        "    drawn = torch.Generator().manual_seed(1000 * rank + 10 * i + again)",
        f"    x = torch.randint(-2, 3, (2, 4), generator=drawn){cast}",
        *(["    x = x.double() if i >= 10 else x"] if program.has("cast") else []),
    ]
    fields = ['"x": x']
    if program["table"] != "none":
        fields.append('"rows": torch.tensor([rank % 3, 3 + i % 3])')
    if _varies(program):
        fields.append(f'"more": {use[program["use"]]}')
    return "\n".join([*lines, f"    return {{{', '.join(fields)}}}"]) + "\n"


def _loss(program: Program) -> str:
    total = {
        "one": "outputs.sum()", "tuple": "outputs[0].sum() + outputs[1].sum()",
        "dictionary": 'outputs["a"].sum() + outputs["b"][0].sum()',
        "dataclass": "outputs.first.sum() + outputs.second[0].sum()", "one outside the loss": "outputs[0].sum()",
    }[program["outputs"]]  # fmt: skip
    return f"def loss(outputs):\n    return 12 * ({total})\n"


def call(program: Program, target: str, batch: str) -> str:
    """The expression that feeds a batch to a model."""
    stars = {"positional": f"*{batch}.values()", "keyword": f"**{batch}", "container": batch}[program["call"]]
    return f"{target}({stars})"


# --- training ---------------------------------------------------------------------------------------------------------


def _train(program: Program) -> str:
    lines = ["def train(rank, look):", *_indented(_prepared(program))]
    for block in range(program.blocks):
        if block:
            lines += _indented(_between(program))
        lines += _indented(_block(program, block))
    return "\n".join(lines) + "\n"


def _indented(lines: Iterator[str] | list[str], by: int = 1) -> list[str]:
    return [textwrap.indent(line, "    " * by) for line in lines]


def _prepared(program: Program) -> Iterator[str]:
    members = list(program.members)
    group = {"world": "dist.group.WORLD", "of its own": "dist.new_group()", "subgroup": f"dist.new_group({members})"}
    overlapped = program.has("overlapped")
    yield f"group = {f'unnamed_group({members})' if overlapped else group[program['group']]}"
    if program.has("moved"):
        yield f"elsewhere = {f'unnamed_group({members})' if overlapped else f'dist.new_group({members})'}"
    if program["group"] == "subgroup":
        yield f"if rank not in {members}:"
        yield "    return"
    yield "model = Model()"
    yield f"fill(model, {0 if program.has('start') else 'rank'})"
    if program["types"] in _DTYPES:
        yield f"model.to({_DTYPES[program['types']]})"
    if program.has("gradient dtype"):
        yield f"keep_wider([{', '.join(kept_wider(program))}])"
    if program.has("ignored"):
        yield (
            "DistributedDataParallel._set_params_and_buffers_to_ignore_for_model("
            'model, ["ignored.weight", "ignored.bias"])'
        )
    yield f"ddp = DistributedDataParallel({', '.join(['model', *_options(program)])})"
    if program.has("hook"):
        yield HOOKS[program["hook"]]
    if program.has("buffer hook"):
        where = "PRE_FORWARD" if program["buffer hook"] == "before forward" else "POST_FORWARD"
        yield f"ddp._register_buffer_comm_hook(group, from_first, _BufferCommHookLocation.{where})"
    if program.has("second model"):
        yield "second = nn.Linear(4, 4)"
        yield f"fill(second, {0 if program.has('start') else 'rank'})"
        if program["types"] in _DTYPES:
            yield f"second.to({_DTYPES[program['types']]})"
        yield f"other = DistributedDataParallel(second{', process_group=group' if program.has('group') else ''})"
    yield from _optimizer(program)


def kept_wider(program: Program) -> list[str]:
    """The modules whose gradients are kept in a wider dtype."""
    named = {"late": program.has("delayed"), "table": program.has("table")}
    return ["model.linear0", *(f"model.{name}" for name, there in named.items() if there)]


def _options(program: Program) -> Iterator[str]:
    if program.has("group") or program.has("overlapped"):
        yield "process_group=group"
    if program["buckets"] == "tiny":
        yield f"bucket_cap_mb={TINY_MIB}"
    if program["buckets"] == "list":
        yield f"bucket_cap_mb_list=[{TINY_MIB}, {2 * TINY_MIB}]"
    if program.has("unused"):
        yield "find_unused_parameters=True"
    if program["unused"] == "skipped":
        yield "skip_all_reduce_unused_params=True"
    if program.has("graph"):
        yield "static_graph=True"
    if program.has("gradients"):
        yield "gradient_as_bucket_view=True"
    if program.has("start"):
        yield "init_sync=False"
    if program.has("buffer sync"):
        yield program["buffer sync"]
    if program.has("copying"):
        yield "batched_grad_copy=True"
    if program.has("lowered"):
        reduced = ", reduce_dtype=torch.float32" if program["lowered"] != "bfloat16" else ""
        yield f"mixed_precision=_MixedPrecision(param_dtype=torch.bfloat16{reduced})"
    if program.has("delayed"):
        yield (
            'delay_all_reduce_named_params=[("late.weight", model.late.weight), ("late.bias", model.late.bias)], '
            "param_to_hook_all_reduce=model.linear0.weight"
        )


def _optimizer(program: Program) -> Iterator[str]:
    kind, settings = SETTINGS[program["optimizer"]]
    yield "parameters = [p for p in ddp.parameters() if p.requires_grad]"
    if program.has("param groups"):
        yield "parameters, later = parameters[:-1], parameters[-1:]"
    if program.has("overlapped"):
        yield (
            f"optimizer = ZeroRedundancyOptimizer("
            f"parameters, {kind}, process_group=group, overlap_with_ddp=True, {settings})"
        )
        factory = "hook_with_zero_step_interleaved" if program["overlapped"] == "interleaved" else "hook_with_zero_step"
        extra = "".join(
            f", {name}=True"
            for name in ("shard_buckets", "reduce_scatter")
            if program["overlap"] in (name, "both")
        )
        yield f"ddp.register_comm_hook(group, {factory}(default_hooks.allreduce_hook, ddp, optimizer{extra}))"
    else:
        yield from _plain_optimizer(program)
    if program.has("second model"):
        yield "descent = torch.optim.SGD(other.parameters(), lr=2**-6)"


def _plain_optimizer(program: Program) -> Iterator[str]:
    """One whose step the program calls itself, with its schedule."""
    kind, settings = SETTINGS[program["optimizer"]]
    if program.has("sharded"):
        views = ", parameters_as_bucket_view=True" if program["sharded"] == "bucket views" else ""
        group = ", process_group=group" if program.has("group") else ""
        yield f"optimizer = ZeroRedundancyOptimizer(parameters, {kind}{group}{views}, {settings})"
    else:
        yield f"optimizer = {kind}(parameters, {settings})"
    if program.has("rate"):
        yield f"schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, {RATE})"


def _between(program: Program) -> Iterator[str]:
    """What happens on every rank between two blocks."""
    if program.has("copied"):
        yield "ddp = copy.deepcopy(ddp)" if program["copied"] == "deeply" else "ddp = pickle.loads(pickle.dumps(ddp))"
        yield from _anew(program)
    if program.has("cast"):
        yield "ddp.zero_grad()"  # a gradient that is cast as well may not be of its parameter's gradient dtype
        yield "ddp.double()" if program["cast"] == "through the wrapper" else "ddp.module.double()"
        yield from _anew(program)
    if program["frozen"] == "between blocks":
        yield "ddp.module.freezing.requires_grad_(False)"
    if program.has("moved"):
        yield "ddp._update_process_group(elsewhere)"
    if program.has("state"):
        yield "kept = copy.deepcopy(ddp.state_dict())"
        yield "with torch.no_grad():"
        yield "    for p in ddp.parameters():"
        yield "        p.zero_()"
        yield "ddp.load_state_dict(kept)"
        if program.has("sharded"):
            yield f"for to in range({len(program.members)}):"
            yield "    optimizer.consolidate_state_dict(to)"
            yield "    if dist.get_rank(group) == to:"
            yield "        state = optimizer.state_dict()"
        else:
            yield "state = optimizer.state_dict()"
        if program["state"] == "into a new optimizer":
            yield from _plain_optimizer(program)
        yield "optimizer.load_state_dict(copy.deepcopy(state))"
    if program.has("param groups") and not program.has("copied"):
        yield 'optimizer.add_param_group({"params": later, "lr": 2**-5})'


def _anew(program: Program) -> Iterator[str]:
    yield "parameters = [p for p in ddp.parameters() if p.requires_grad]"
    yield from _plain_optimizer(program)


def _context(program: Program) -> str:
    words = []
    if program.has("divisor"):
        words.append("divide_by_initial_world_size=False")
    if program.has("early end"):
        words.append("throw_on_early_termination=True")
    if program["context"] == "ddp.join":
        return f"ddp.join({', '.join(words)})"
    parts = ["ddp"]
    if program.has("second model"):
        parts.append("other")
    if program.has("sharded") or program.has("overlapped"):
        parts.insert(0 if program.has("listed") else len(parts), "optimizer")
    together = f"[{', '.join(parts)}]"
    return f"Join({', '.join([together, *words])})"


def _block(program: Program, block: int) -> Iterator[str]:
    schedule = program.schedule(block)
    first = program.members[0]
    uneven = f"{list(schedule)}[rank{f' - {first}' if first else ''}]"
    count = uneven if len(set(schedule)) > 1 else str(schedule[0])
    body = [f"for i in range({count}):" if not block else f"for i in range(10, 10 + {count}):"]
    body += _indented(_iteration(program, block))
    if not program.in_context(block):
        yield from body
    else:
        inside = [f"with {_context(program)}:", *_indented(body)]
        if program.has("early end"):
            yield "try:"
            yield from _indented(inside)
            yield "except RuntimeError as error:"
            yield '    look.raised("block 1", error)'
        else:
            yield from inside
    yield f'look(f"after block {block + 1}", ddp.module{_others(program)})'
    if not program.has("overlapped"):
        yield f'look.state("after block {block + 1}", optimizer{", 0" if program.has("sharded") else ""})'


def _others(program: Program) -> str:
    return ", other=other.module" if program.has("second model") else ""


def _iteration(program: Program, block: int) -> Iterator[str]:
    act = program.act_at(block) + 10 * block
    if program["cleared"] != "after the forward":
        yield from _cleared(program, block)
    acts = list(_acts(program))
    if acts:
        yield f"if i == {act}:"
        yield from _indented(acts)
    gradients = list(_gradients(program, block, act))
    if program.has("closure"):
        yield "def closure():"
        yield from _indented(gradients)
        yield "    return 0.0"
    else:
        yield from gradients
    if not program.has("overlapped"):
        yield f"optimizer.step({'closure' if program.has('closure') else ''})"
    if program.has("rate"):
        yield "schedule.step()"
    if program.has("second model"):
        yield "descent.step()"


def _cleared(program: Program, block: int) -> Iterator[str]:
    if program["accumulation"] == "uncleared":
        return
    zeros = program["cleared"] == "to zeros"
    yield f"optimizer.zero_grad(set_to_none={not zeros})"
    if program.has("param groups") and not block:
        yield "for p in later:"
        yield "    p.grad = None" if not zeros else "    p.grad = None if p.grad is None else torch.zeros_like(p.grad)"
    if program.has("second model"):
        yield f"descent.zero_grad(set_to_none={not zeros})"


def _gradients(program: Program, block: int, act: int) -> Iterator[str]:
    """Forwards, backwards, and what is seen and done between them and the step."""
    yield "batch = data(rank, i)"
    if program["loss"] == "and slopes":
        yield 'batch["x"].requires_grad_()'
    yield f"outputs = {call(program, 'ddp', 'batch')}"
    if program["cleared"] == "after the forward":
        yield from _cleared(program, block)
    yield "whole = loss(outputs)"
    if program["loss"] == "and weights":
        yield "whole = whole + 12 * sum(p.float().sum() for p in ddp.parameters() if p.requires_grad)"
    if program["loss"] == "and slopes":
        yield '(slopes,) = torch.autograd.grad(whole, batch["x"], create_graph=True, allow_unused=True)'
        yield "whole = whole if slopes is None else whole + slopes.sum()"
    if program["forwards"] == "two":
        yield f"if i == {act}:"
        yield f"    whole = loss({call(program, 'ddp', 'data(rank, i, 2)')}) + whole"
    twice = program["forwards"] == "two backwards"
    yield f"whole.backward({f'retain_graph=i == {act}' if twice else ''})"
    if twice:
        yield f"if i == {act}:"
        yield "    loss(outputs).backward()"
    if program.has("second model"):
        yield '(12 * other(data(rank, i)["x"]).sum()).backward()'
    yield f'look(f"iteration {{i}}", ddp.module, outputs=outputs{_others(program)})'
    if program["clipped"] == "by norm":
        yield f"torch.nn.utils.clip_grad_norm_(ddp.parameters(), {CLIPPED_NORM})"
    if program["clipped"] == "by value":
        yield f"torch.nn.utils.clip_grad_value_(ddp.parameters(), {CLIPPED_VALUE})"


def _acts(program: Program) -> Iterator[str]:
    """What happens before the forward of one iteration."""
    if program["data"] == "laid out anew":
        yield "ddp.to(memory_format=torch.channels_last)"
    elif program["data"] == "gradients assigned":
        yield "for p in [*ddp.parameters()][1::2]:"  # the first of a bucket or not, the others stay in it
        yield "    if p.grad is not None and not p.grad.is_sparse:"
        yield "        p.grad.data = p.grad.data.clone()"
    elif program.has("data"):
        yield f"for p in [*ddp.parameters()]{'[:1]' if program['data'] == 'one assigned' else ''}:"
        yield "    p.data = p.data.clone()"
    if program["evaluation"] == "by all":
        yield "ddp.eval()"
        yield "with torch.no_grad():"
        yield f'    look.outputs(f"evaluation {{i}}", {call(program, "ddp", "data(rank, i, 3)")})'
        yield "ddp.train()"
    elif program["evaluation"] == "by one":
        yield f"if rank == {program.members[-1]}:"
        yield "    ddp.eval()"
        yield "    with torch.no_grad():"
        yield f'        look.outputs(f"evaluation {{i}}", {call(program, "ddp.module", "data(rank, i, 3)")})'
        yield "    ddp.train()"
    elif program["evaluation"] == "alone in the wrapper":
        yield f"if rank == {program.members[-1]}:"
        yield "    with torch.no_grad():"
        yield f'        look.outputs(f"evaluation {{i}}", {call(program, "ddp", "data(rank, i, 3)")})'
    if program["accumulation"] == "no_sync":
        yield "with ddp.no_sync():"
        yield f"    loss({call(program, 'ddp', 'data(rank, i, 1)')}).backward()"
    if program["forwards"] == "skipped backward":
        yield call(program, "ddp", "data(rank, i, 2)")
    if program["forwards"] == "failing":
        yield "try:"
        yield "    " + call(program, "ddp", '{**data(rank, i), "x": None}')
        yield "except (TypeError, AttributeError):"
        yield "    pass"
