"""A program as plain Python over the public names: what the ranks run, and what a failure is reported as.

The text uses the names that a subject provides (``DistributedDataParallel``, ``Join`` …), ``dist``, ``nn``, ``torch``
and ``look``, which notes what there is to compare.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..subjects import STRICT
from .program import Program
from .source_iteration import indented, iteration, others
from .source_model import (
    AUTOCASTING,
    DTYPES,
    FILL,
    MODULE_HOOKS,
    PARAMETER_HOOKS,
    SILENT,
    WIDER,
    data,
    kept_wider,
    loss,
    model,
)
from .source_optimizer import COUNTING, STEP_HOOKS, anew, optimizer, plain_optimizer

TINY_MIB = 1e-4

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


HALFWAY = '''
def halfway(averaged, now, count):
    return (averaged + now) / 2
'''

COUNTER = '''
class Counter(Joinable):
    """Adds up how many ranks have inputs, by an all-reduce in each iteration."""

    def __init__(self, group):
        super().__init__()
        self.group, self.counted = group, 0

    @property
    def join_device(self):
        return torch.empty(0).device

    @property
    def join_process_group(self):
        return self.group

    def join_hook(self, **_):
        return CounterHook(self)

    def step(self):
        Join.notify_join_context(self)
        self.count(1)

    def count(self, number):
        total = torch.tensor([number])
        dist.all_reduce(total, group=self.group)
        self.counted += int(total)


class CounterHook(JoinHook):
    def __init__(self, counter):
        self.counter = counter

    def main_hook(self):
        self.counter.count(0)
'''

#: what a choice on these axes asks for
TEXTS = {
    "hook": USERS_HOOKS, "buffer hook": BUFFER_HOOKS, "parameter hooks": PARAMETER_HOOKS, "step hooks": STEP_HOOKS,
}  # fmt: skip


def source(program: Program) -> str:
    """The whole text: model, data, loss and ``train(rank, look)``."""
    parts = [model(program), FILL, data(program), loss(program)]
    if program["use"] == "without gradient":
        parts.insert(0, SILENT)
    if program["optimizer"] == "counting":
        parts.append(COUNTING)
    if program.has("gradient dtype"):
        parts.append(WIDER)
    if program.has("module hooks"):
        parts.append(MODULE_HOOKS)
    if program.has("autocast"):
        parts.append(AUTOCASTING)
    if program.has("averaged"):
        parts.append(HALFWAY)
    if program.has("joinable"):
        parts.append(COUNTER)
    for axis, texts in TEXTS.items():
        parts.append(texts.get(program[axis], ""))
    parts.append(_train(program))
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _train(program: Program) -> str:
    lines = ["def train(rank, look):", *indented(_prepared(program))]
    for block in range(program.blocks):
        if block:
            lines += indented(_between(program))
        lines += indented(_block(program, block))
    return "\n".join(lines) + "\n"


def _prepared(program: Program) -> Iterator[str]:
    members = list(program.members)
    group = {"world": "dist.group.WORLD", "of its own": "dist.new_group()", "subgroup": f"dist.new_group({members})"}
    overlapped = program.has("overlapped")
    if program.has("mode"):
        yield f'os.environ["{STRICT}"] = "1"'
    yield f"group = {f'unnamed_group({members})' if overlapped else group[program['group']]}"
    if program.has("moved"):
        yield f"elsewhere = {f'unnamed_group({members})' if overlapped else f'dist.new_group({members})'}"
    if program["group"] == "subgroup":
        yield f"if rank not in {members}:"
        yield "    return"
    yield "model = Model()"
    yield f"fill(model, {0 if program.has('start') else 'rank'})"
    if program["types"] in DTYPES:
        yield f"model.to({DTYPES[program['types']]})"
    if program.has("gradient dtype"):
        yield f"keep_wider([{', '.join(kept_wider(program))}])"
    if program.has("ignored"):
        yield (
            "DistributedDataParallel._set_params_and_buffers_to_ignore_for_model("
            'model, ["ignored.weight", "ignored.bias"])'
        )
    if program.has("attached"):
        yield "attach(torch.optim.SGD, model.linear0.parameters(), {'lr': 2**-6})"
    if program["parameter hooks"] == "of gradients":
        yield "hook_parameters(model)"
    yield f"ddp = DistributedDataParallel({', '.join(['model', *_options(program)])})"
    if program["parameter hooks"] == "behind accumulation":
        yield "hook_parameters(ddp)"
    if program["module hooks"] == "of the wrapper":
        yield "ddp.register_forward_pre_hook(watch)"
        yield "ddp.register_forward_hook(watch)"
        yield "ddp.register_full_backward_hook(watch)"
    if program.has("hook") and not program.has("registered"):
        yield HOOKS[program["hook"]]
    if program.has("buffer hook"):
        where = "PRE_FORWARD" if program["buffer hook"] == "before forward" else "POST_FORWARD"
        yield f"ddp._register_buffer_comm_hook(group, from_first, _BufferCommHookLocation.{where})"
    if program.has("second model"):
        yield "second = nn.Linear(4, 4)"
        yield f"fill(second, {0 if program.has('start') else 'rank'})"
        if program["types"] in DTYPES:
            yield f"second.to({DTYPES[program['types']]})"
        grouped = ", process_group=group" if program.has("group") or program.has("overlapped") else ""
        yield f"other = DistributedDataParallel(second{grouped})"
    if program.has("joinable"):
        yield "counter = Counter(group)"
    yield from optimizer(program)
    if program["frozen"] == "until the second block":
        yield "ddp.module.freezing.requires_grad_(False)"
    if program.has("averaged"):
        averaged = "ddp" if program["averaged"] == "of the wrapper" else "ddp.module"
        yield f"average = torch.optim.swa_utils.AveragedModel({averaged}, avg_fn=halfway)"


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


def _between(program: Program) -> Iterator[str]:
    """What happens on every rank between two blocks."""
    if program.has("copied"):
        yield "ddp = copy.deepcopy(ddp)" if program["copied"] == "deeply" else "ddp = pickle.loads(pickle.dumps(ddp))"
        yield from anew(program)
    if program.has("cast"):
        yield "ddp.zero_grad()"  # a gradient that is cast as well may not be of its parameter's gradient dtype
        yield "ddp.double()" if program["cast"] == "through the wrapper" else "ddp.module.double()"
        yield from anew(program)
    if program["frozen"] in ("between blocks", "until the second block"):
        yield f"ddp.module.freezing.requires_grad_({program['frozen'] != 'between blocks'})"
    if program.has("moved"):
        yield "ddp._update_process_group(elsewhere)"
    if program.has("registered"):
        yield HOOKS[program["hook"]]
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
            yield from plain_optimizer(program)
        yield "optimizer.load_state_dict(copy.deepcopy(state))"
    if program.has("param groups") and not program.has("copied"):
        yield 'optimizer.add_param_group({"params": later, "lr": 2**-5})'


def _context(program: Program) -> str:
    words = ["enable=False"] if program["context"] == "not enabled" else []
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
    if program.has("joinable"):
        parts.insert(0 if program["joinable"] == "listed first" else len(parts), "counter")
    together = f"[{', '.join(parts)}]"
    return f"Join({', '.join([together, *words])})"


def _block(program: Program, block: int) -> Iterator[str]:
    schedule = program.schedule(block)
    first = program.members[0]
    uneven = f"{list(schedule)}[rank{f' - {first}' if first else ''}]"
    count = uneven if len(set(schedule)) > 1 else str(schedule[0])
    body = [f"for i in range({count}):" if not block else f"for i in range(10, 10 + {count}):"]
    body += indented(iteration(program, block))
    if not program.enters(block):
        yield from body
    else:
        inside = [f"with {_context(program)}:", *indented(body)]
        if program.has("early end"):
            yield "try:"
            yield from indented(inside)
            yield "except RuntimeError as error:"
            yield '    look.raised("block 1", error)'
        else:
            yield from inside
    yield f'look(f"after block {block + 1}", ddp.module{others(program)})'
    if program.has("averaged"):
        module = "average.module.module" if program["averaged"] == "of the wrapper" else "average.module"
        yield f'look.weights("after block {block + 1}", "averaged ", {module})'
    if program.has("joinable"):
        yield f'look.number("after block {block + 1}", "counted", counter.counted)'
    if program.has("step hooks"):
        yield f'look.number("after block {block + 1}", "calls of hooks", len(calls))'
    if not program.has("overlapped"):
        yield f'look.state("after block {block + 1}", optimizer{", 0" if program.has("sharded") else ""})'
