"""The overlapped step where many choices meet: any two of them in some program, each iteration as in one process.

What the documents promise of each of them by itself the other files check. Here a program has one of every kind: a
schedule, a reduction, an optimizer, a model, something that happens between two iterations, a context.
"""

import copy
import itertools
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from conformance.api import oracle
from conformance.api.checking import check
from conformance.fixtures import choices, models, overlapping
from conformance.fixtures.choices import (
    AFTER,
    BEFORE,
    BEHIND,
    WITHIN,
    Columns,
    Turns,
    happen,
    in_cases,
    turn,
    worlds_of,
)
from conformance.fixtures.overlapping import OPTIMIZERS, Overlap, group_of, pair_of
from conformance.fixtures.pairwise import covering
from conformance.fixtures.training import numbers

DEADLINE_S = 12.0
BATCH = 8  # programs of one case
CLOSE = 1e-5  # of the largest number, where something rounds
ONE_MIB, SOME_MIB, EACH_MIB = 25, overlapping.CAP_MIB, 1e-6

FACTORS = {
    "world": (2, 3),
    "schedule": ("sequential", "interleaved"),
    "owners": ("of buckets", "of pieces"),
    "reduction": ("all-reduce", "in doubles", "late", "in half precision", "to owners"),
    "clipped": ("no", "by norm"),
    "optimizer": ("momentum", "decay", "adam", "counting", "private"),
    "groups": ("one", "two", "some parameters"),
    "model": ("forwards", "backwards", "complex", "by columns", "some unused"),
    "graph": ("dynamic", "searched", "static"),
    "gradients": ("copies", "views"),
    "cleared": ("to None", "to zeros"),
    "buckets": (ONE_MIB, SOME_MIB, EACH_MIB),
    "between": (
        "nothing", "accumulation", "evaluation", "a forward alone", "other storage", "another group", "another rate",
        "a checkpoint",
    ),
    "context": ("none", "by all", "by the active"),
    "hooks": ("none", "of the local optimizer"),  # which is another one when owners change
}  # fmt: skip
FORBIDDEN = (
    {"schedule": ("interleaved",), "clipped": ("by norm",)},  # the first step comes before the last gradient
    {"model": ("some unused",), "graph": ("dynamic", "static")},  # they are used by turns
    {"graph": ("searched",), "model": ("forwards", "by columns", "complex")},
    {"optimizer": ("private",), "between": ("a checkpoint", "another group")},  # what it keeps to itself stays behind
    # it counts the steps of a group of which it owns something, and joined ranks follow the settings of a live one
    {"optimizer": ("private",), "context": ("by all", "by the active")},
    {"reduction": ("in doubles", "late"), "context": ("by the active",)},  # these hooks divide by all
)


#: more than two choices that show a mistake only if they meet: who has joined has an old gradient of what it owns and
#: nobody uses, and an optimizer that is shown all that it owns
_OLD = {
    "optimizer": "counting", "model": "some unused", "graph": "searched", "buckets": EACH_MIB, "context": "by all",
}  # fmt: skip
TOGETHER = ({**_OLD, "world": 2}, {**_OLD, "world": 3, "schedule": "interleaved", "context": "by the active"})


MODELS = {
    "forwards": models.Sum, "backwards": models.SumBackwards, "complex": models.Complex, "by columns": Columns,
    "some unused": Turns,
}  # fmt: skip


def listed(groups, model):
    """What the optimizer is given."""
    params = list(model.parameters())
    if groups == "some parameters":
        return params[1:]
    return params if groups == "one" else [{"params": params[::2]}, {"params": params[1::2], "lr": 0.125}]


class Program(choices.Program):
    """With what it asks of the overlapped step."""

    def how(self, ctx):
        hooks = {
            "all-reduce": None, "in doubles": overlapping.in_doubles, "late": overlapping.late,
            "in half precision": ctx.subject.default_hooks.fp16_compress_hook, "to owners": None,
        }  # fmt: skip
        keywords = {"reduce_scatter": self["reduction"] == "to owners"}
        if self["schedule"] == "sequential":
            keywords["max_norm"] = 20.0 if self["clipped"] == "by norm" else None
        return Overlap(
            self["schedule"] == "interleaved", self["owners"] == "of pieces", self["optimizer"],
            MODELS[self["model"]], partial(listed, self["groups"]), hooks[self["reduction"]], self.options, keywords,
        )  # fmt: skip

    @property
    def rounds(self):
        return self["clipped"] == "by norm"


def programs():
    """The programs of each case, by its name."""
    plain = {factor: values[0] for factor, values in FACTORS.items()}
    return in_cases((*({**plain, **each} for each in TOGETHER), *covering(FACTORS, FORBIDDEN)), Program, BATCH)


# -- on the ranks


def train(ctx, program, group):
    """What each of this rank's iterations leaves, in the context and outside; then the optimizer's whole state."""
    pair, seen = pair_of(ctx, program.how(ctx), group), []

    def step(number, *micro):
        pair.ddp.zero_grad(set_to_none=program["cleared"] == "to None")
        for part in micro:
            with pair.ddp.no_sync():
                backward(part)
        backward(number)
        held = {} if program["reduction"] == "to owners" else {n: p.grad for n, p in pair.model.named_parameters()}
        seen.append((numbers(pair.model.named_parameters()), numbers(held.items()), shown(pair.zero)))

    def backward(number):
        turn(pair.model, ctx.rank, number)
        overlapping.loss(pair.ddp(pair.batch(number))).backward()

    for number in range(BEFORE):
        step(number)
        if number == 0 and program["hooks"] != "none":
            pair.zero.optim.register_step_post_hook(bound)
    happen_here(ctx, pair, program["between"])
    step(BEFORE, *program.micro)
    if program["context"] != "none":
        with ctx.subject.Join([pair.ddp, pair.zero], divide_by_initial_world_size=program.divides_by_all):
            for number in range(program.schedule[ctx.rank]):
                step(WITHIN + number)
    for number in range(AFTER):
        step(BEHIND + number)
    pair.zero.consolidate_state_dict()
    return seen, told(pair.zero.state_dict()) if ctx.rank == 0 else None


def happen_here(ctx, pair, what):
    """What happens between two iterations."""

    def forward():
        turn(pair.model, ctx.rank, BEFORE)
        pair.ddp(pair.batch(BEFORE))

    happen(what, pair.ddp, forward, partial(group_of, ctx))
    if what == "another rate":
        halve(pair.zero)
    elif what == "a checkpoint":
        pair.zero.consolidate_state_dict(ctx.world - 1)
        saved = [pair.zero.state_dict() if ctx.rank == ctx.world - 1 else None]
        dist.broadcast_object_list(saved, src=ctx.world - 1)
        pair.zero.load_state_dict(saved[0])


@torch.no_grad()
def bound(optimizer, *_):
    for parameter in (each for group in optimizer.param_groups for each in group["params"]):
        (torch.view_as_real(parameter) if parameter.is_complex() else parameter).clamp_(-9, 7)


def halve(optimizer):
    for group in optimizer.param_groups:
        group["lr"] *= 0.5


def shown(optimizer):
    return [(group["lr"], group.get("count"), len(group["params"])) for group in optimizer.param_groups]


def told(state_dict):
    """The state of each parameter as text, tensors as numbers."""
    return {key: str(as_numbers(state)) for key, state in sorted(state_dict["state"].items(), key=str)}


def as_numbers(value):
    if isinstance(value, torch.Tensor):
        return value.dtype, value.tolist()
    return {name: as_numbers(each) for name, each in value.items()} if isinstance(value, dict) else value


def train_each(ctx, chosen):
    group = group_of(ctx)
    return [train(ctx, program, group) for program in chosen]


# -- in one process


class Alone:
    """What one process leaves of a program."""

    def __init__(self, program, world):
        self.program, self.world, self.seen = program, world, []
        self.model = MODELS[program["model"]]()
        kind, settings = OPTIMIZERS[program["optimizer"]]
        self.optimizer = kind(listed(program["groups"], self.model), **settings)
        self.own = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def step(self, active, divisor, *numbers_):
        """An iteration of these ranks; more than one number: what is accumulated before the last."""
        self.model.zero_grad(set_to_none=self.program["cleared"] == "to None")
        total = {}
        for rank, number in itertools.product(active, numbers_):
            turn(self.model, rank, number)
            output = overlapping.loss(self.model(overlapping.batch(rank, number)))
            found = torch.autograd.grad(output, list(self.model.parameters()), allow_unused=True)
            for parameter, one in zip(self.model.parameters(), found, strict=True):
                if one is not None:
                    total[parameter] = total.get(parameter, 0) + one / divisor
        for parameter, average in total.items():
            parameter.grad = average
        if self.program["clipped"] == "by norm":
            nn.utils.clip_grad_norm_(self.own, 20.0)
        self.optimizer.step()
        held = [(name, parameter.grad) for name, parameter in self.model.named_parameters()]
        self.seen.append((numbers(self.model.named_parameters()), numbers(held), shown(self.optimizer)))

    def train(self):
        """What each iteration leaves, by whom it is made; then the optimizer's state."""
        program, everybody, made_by = self.program, range(self.world), []
        for number in range(BEFORE):
            self.step(everybody, self.world, number)
            if number == 0 and program["hooks"] != "none":
                self.optimizer.register_step_post_hook(bound)
        if program["between"] == "another rate":
            halve(self.optimizer)
        elif program["between"] == "a checkpoint":
            self.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        self.step(everybody, self.world, *program.micro, BEFORE)
        made_by += [everybody] * len(self.seen)
        for number in range(max(program.schedule) if program["context"] != "none" else 0):
            active = oracle.active_ranks(program.schedule, number)
            self.step(active, self.world if program.divides_by_all else len(active), WITHIN + number)
            made_by.append(active)
        for number in range(AFTER):
            self.step(everybody, self.world, BEHIND + number)
            made_by.append(everybody)
        return list(zip(made_by, self.seen, strict=True)), told(self.optimizer.state_dict())


def assert_as_alone(program, rank, run, right):
    seen, state = run
    expected = [each for made_by, each in right[0] if rank in made_by]
    assert len(seen) == len(expected)
    for number, (mine, due) in enumerate(zip(seen, expected, strict=True)):
        where = f"rank {rank}, its iteration {number}, {program}"
        assert mine[2] == due[2], f"groups of {where}"
        for found, wanted, what in zip(mine, due[:2], ("parameters", "gradients"), strict=False):
            if found and not (program.rounds and near(found, wanted)):
                assert found == wanted, f"{what} of {where}"
    if state is not None and not program.rounds:
        assert state == right[1], f"state behind {program}"


def near(found, wanted):
    return all(
        (values is None) == (wanted[name] is None) and (values is None or close(values, wanted[name]))
        for name, values in found.items()
    )


def close(found, wanted):
    one, other = (torch.tensor(values, dtype=torch.complex128) for values in (found, wanted))
    return bool((one - other).abs().max() <= CLOSE * max(1.0, other.abs().max().item()))


@check("HOOK-018", worlds=(2, 3), at=worlds_of, scenarios=programs(), deadline_s=DEADLINE_S, beyond=False)
def test_any_two_choices_around_an_overlapped_step_train_as_one_process(ranks, scenario):
    expected = [Alone(program, ranks.world).train() for program in scenario]
    for rank, runs in enumerate(ranks(train_each, scenario)):
        for program, run, right in zip(scenario, runs, expected, strict=True):
            assert_as_alone(program, rank, run, right)
