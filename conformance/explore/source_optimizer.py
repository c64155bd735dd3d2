"""How a program steps, as text: its optimizers, and what is done to them."""

from __future__ import annotations

from collections.abc import Iterator

from .program import Program

LR = 2.0**-6
RATE = 0.5  # by which a schedule multiplies the learning rate after each step
SETTINGS = {
    "sgd": ("torch.optim.SGD", "lr=2**-6"),
    "momentum": ("torch.optim.SGD", "lr=2**-6, momentum=0.5"),
    "decay": ("torch.optim.SGD", "lr=2**-6, momentum=0.5, weight_decay=2**-2"),
    "adam": ("torch.optim.Adam", "lr=2**-5, eps=2**-3"),  # else a step of what rounding leaves of a zero
    "counting": ("Counting", "lr=2**-6"),
    "maximizing": ("torch.optim.SGD", "lr=2**-6, momentum=0.5, maximize=True, foreach=True"),
    "fused": ("torch.optim.Adam", "lr=2**-5, eps=2**-3, fused=True"),
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

STEP_HOOKS = {
    "counting": '''
def hook_steps(optimizer, calls):
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("behind"))
''',
    "halving": '''
def hook_steps(optimizer, calls):
    def halve(optimizer, args, kwargs):
        for p in [p for group in optimizer.param_groups for p in group["params"]]:
            if p.grad is not None:
                p.grad.mul_(0.5)

    optimizer.register_step_pre_hook(halve)
''',
}


def optimizer(program: Program) -> Iterator[str]:
    """The first ones, of each model."""
    kind, settings = SETTINGS[program["optimizer"]]
    yield from _trained(program)
    if program.has("param groups"):
        yield "parameters, later = parameters[:-1], parameters[-1:]"
    if program.has("step hooks"):
        yield "calls = []"
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
        yield from plain_optimizer(program)
    if program.has("second model"):
        yield "descent = torch.optim.SGD(other.parameters(), lr=2**-6)"


def plain_optimizer(program: Program) -> Iterator[str]:
    """One whose step the program calls itself, with its schedule."""
    kind, settings = SETTINGS[program["optimizer"]]
    if program.has("sharded"):
        views = ", parameters_as_bucket_view=True" if program["sharded"] == "bucket views" else ""
        group = ", process_group=group" if program.has("group") else ""
        yield f"optimizer = ZeroRedundancyOptimizer(parameters, {kind}{group}{views}, {settings})"
    else:
        yield f"optimizer = {kind}(parameters, {settings})"
    if program.has("step hooks"):
        yield "hook_steps(optimizer, calls)"
    if program.has("rate"):
        yield f"schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, {RATE})"


def anew(program: Program) -> Iterator[str]:
    """One for the parameters that there are now."""
    yield from _trained(program)
    yield from plain_optimizer(program)


def _trained(program: Program) -> Iterator[str]:
    yield "parameters = [p for p in ddp.parameters() if p.requires_grad]"
    if program.has("beside"):
        yield "parameters, rest = parameters[::2], parameters[1::2]"
        yield "further = torch.optim.SGD(rest, lr=2**-6)"


def cleared(program: Program, block: int) -> Iterator[str]:
    """What an iteration begins with."""
    if program["accumulation"] == "uncleared":
        return
    zeros = program["cleared"] in ("to zeros", "in part")
    yield f"optimizer.zero_grad(set_to_none={not zeros})"
    if program.has("param groups") and not block:
        yield "for p in later:"
        yield "    p.grad = None" if not zeros else "    p.grad = None if p.grad is None else torch.zeros_like(p.grad)"
    for name, axis in (("further", "beside"), ("descent", "second model")):
        if program.has(axis):
            yield f"{name}.zero_grad(set_to_none={not zeros})"
    if program["cleared"] == "in part":
        yield "for p in [*ddp.parameters()][::2]:"
        yield "    p.grad = None"
