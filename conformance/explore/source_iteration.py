"""One iteration of a program, as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from .program import Program
from .source_model import call, first
from .source_optimizer import cleared

CLIPPED_NORM = 32.0
CLIPPED_VALUE = 16.0


def iteration(program: Program, block: int) -> Iterator[str]:
    """What every rank with inputs does: one forward, one backward and one step, and what acts there are."""
    act = program.act_at(block) + 10 * block
    in_turns = program["accumulation"] == "every second"  # a step in every second iteration, for both
    clearing = list(cleared(program, block))
    if program["cleared"] != "after the forward":
        yield from _under("if i % 2 == 0:", clearing) if in_turns else clearing
    if program["joinable"] == "listed first":
        yield "counter.step()"
    yield from _under(f"if i == {act}:", list(_acts(program)))
    gradients = list(_gradients(program, clearing, act))
    changes = list(_changes(program))
    if program.has("closure"):
        yield from _under("def closure():", [*gradients, *changes, "return 0.0"])
        changes = []
    elif in_turns:
        yield from _under("with ddp.no_sync() if i % 2 == 0 else contextlib.nullcontext():", gradients)
    else:
        yield from gradients
    stepping = [*changes, *_stepping(program)]
    yield from _under("if i % 2:", stepping) if in_turns else stepping
    if program["joinable"] == "listed last":
        yield "counter.step()"


def indented(lines: Iterator[str] | list[str]) -> list[str]:
    """The lines, one level further in."""
    return [textwrap.indent(line, "    ") for line in lines]


def _under(head: str, body: list[str]) -> list[str]:
    return [head, *indented(body)] if body else []


def _gradients(program: Program, clearing: list[str], act: int) -> Iterator[str]:
    """Forwards and backwards, and what is looked at after them."""
    yield "batch = data(rank, i)"
    if program["loss"] == "and slopes":
        yield 'batch["x"].requires_grad_()'
    yield f"outputs = {call(program, 'ddp', 'batch', repeated=program['checkpoint'] == 'the whole model')}"
    if program["cleared"] == "after the forward":
        yield from clearing
    yield "whole = loss(outputs)"
    if program["loss"] == "and weights":
        yield "whole = whole + 12 * sum(p.float().sum() for p in ddp.parameters() if p.requires_grad)"
    if program["loss"] == "and slopes":
        yield '(slopes,) = torch.autograd.grad(whole, batch["x"], create_graph=True, allow_unused=True)'
        yield "whole = whole if slopes is None else whole + slopes.sum()"
    if program["second model"] == "behind":
        yield f"whole = whole + (12 * other({first(program)})).sum()"
    if program["forwards"] == "two":
        yield f"if i == {act}:"
        yield f"    whole = loss({call(program, 'ddp', 'data(rank, i, 2)')}) + whole"
    yield from _backward(program, act)
    if program["second model"] == "beside":
        yield '(12 * other(data(rank, i)["x"]).sum()).backward()'
    yield f'look(f"iteration {{i}}", ddp.module, outputs=outputs{others(program)})'


def _backward(program: Program, act: int) -> Iterator[str]:
    if program.has("backward"):
        yield "trained = [p for p in ddp.parameters() if p.requires_grad]"
    if program["forwards"] == "two backwards":
        yield f"whole.backward(retain_graph=i == {act})"
        yield f"if i == {act}:"
        yield "    loss(outputs).backward()"
    elif program["backward"] == "of all by name":
        yield "whole.backward(inputs=trained)"
    elif program["backward"] == "in two parts":
        yield "whole.backward(inputs=trained[::2], retain_graph=True)"
        yield "whole.backward(inputs=trained[1::2])"
    else:
        if program["backward"] == "behind a look":
            yield "torch.autograd.grad(whole, trained[:1], retain_graph=True, allow_unused=True)"
        yield "whole.backward()"


def others(program: Program) -> str:
    """The argument of ``look`` for a second model."""
    return ", other=other.module" if program.has("second model") else ""


def _changes(program: Program) -> Iterator[str]:
    """What becomes of gradients before they are stepped with."""
    if program["reworked"] == "in place":
        yield "for p in [p for p in ddp.parameters() if p.grad is not None]:"
        yield "    p.grad.mul_(0.5)"
    elif program["reworked"] == "replaced":
        yield "for p in [p for p in ddp.parameters() if p.grad is not None]:"
        yield "    p.grad = p.grad / 2"
    elif program["reworked"] == "dropped in part":
        yield "for p in [*ddp.parameters()][::2]:"
        yield "    p.grad = None"
    if program["clipped"] == "by norm":
        yield f"torch.nn.utils.clip_grad_norm_(ddp.parameters(), {CLIPPED_NORM})"
    if program["clipped"] == "by value":
        yield "if any(p.grad is not None for p in ddp.parameters()):"
        yield f"    torch.nn.utils.clip_grad_value_(ddp.parameters(), {CLIPPED_VALUE})"


def _stepping(program: Program) -> Iterator[str]:
    if not program.has("overlapped"):
        yield f"optimizer.step({'closure' if program.has('closure') else ''})"
    if program.has("beside"):
        yield "further.step()"
    if program.has("rate"):
        yield "schedule.step()"
    if program.has("second model"):
        yield "descent.step()"
    if program.has("averaged"):
        yield f"average.update_parameters({'ddp' if program['averaged'] == 'of the wrapper' else 'ddp.module'})"


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
    if program["evaluation"] in ("by all", "in inference mode"):
        yield "ddp.eval()"
        yield f"with torch.{'no_grad' if program['evaluation'] == 'by all' else 'inference_mode'}():"
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
