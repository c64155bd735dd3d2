"""What implementations offer beyond the documents, and what it cannot mean: refused at once, on every rank."""

import copy
import inspect
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer, _apply_optimizer_in_backward

from conformance.api.checking import check
from conformance.fixtures import models, overlapping
from conformance.fixtures.observing import lowered
from conformance.fixtures.training import ddp, private
from conformance.ranks import caught
from conformance.subjects import DETECTION, NotOffered

LR = 0.125

# -- HOOK-018: further keywords of the overlap hooks

#: keywords of the sequential hook, the hook that is wrapped (a name of the library, or what is no hook), and the words
#: and class of the error; None: allowed
KEYWORDS = [
    ({"max_norm": 0}, "allreduce_hook", ("max_norm", ValueError)),
    ({"max_norm": -1.0}, "allreduce_hook", ("max_norm", ValueError)),
    ({"max_norm": math.nan}, "allreduce_hook", ("max_norm", ValueError)),
    ({"max_norm": 1e-30}, "allreduce_hook", None),
    ({"max_norm": 1.0, "norm_type": 0.0}, "allreduce_hook", ("norm_type", ValueError)),
    ({"max_norm": 1.0, "norm_type": -2.0}, "allreduce_hook", ("norm_type", ValueError)),
    ({"max_norm": 1.0, "norm_type": math.inf}, "allreduce_hook", None),
    ({"warm_up_iterations": -1}, "allreduce_hook", ("warm_up_iterations", ValueError)),
    ({"warm_up_iterations": 0, "reduce_scatter": True}, None, None),
    ({"warm_up_iterations": 1, "reduce_scatter": True}, None, ("warm_up_iterations", ValueError)),
    ({"reduce_scatter": True}, "fp16_compress_hook", ("reduce_scatter", ValueError)),
    ({"reduce_scatter": "no"}, "allreduce_hook", ("reduce_scatter", TypeError)),
    ({"reduce_scatter": False}, None, ("hook", TypeError)),
    ({"reduce_scatter": False}, 1, ("hook", TypeError)),
]


def give_each_keyword(ctx):
    """Errors of the overlap hooks with each of the keywords, then with objects that they cannot overlap; and of copies
    of the optimizer."""
    group, factory = overlapping.group_of(ctx), overlapping.factory_of(ctx, False)
    wanted = {name for keywords, *_ in KEYWORDS for name in keywords}
    if not wanted <= set(inspect.signature(factory).parameters):
        raise NotOffered(ctx.subject, "overlap hooks with further keywords")
    model = ddp(ctx, models.Sum().to(ctx.device), process_group=group)
    zero = overlapping.optimizer_of(ctx, model.parameters(), "momentum", group)
    library = ctx.subject.default_hooks
    hooks = [getattr(library, name) if isinstance(name, str) else name for _, name, _ in KEYWORDS]
    told = [
        caught(factory, hook, model, zero, **keywords) for hook, (keywords, *_) in zip(hooks, KEYWORDS, strict=True)
    ]
    half = ddp(ctx, models.Sum().to(ctx.device), process_group=group,
               mixed_precision=lowered(ctx, {"param_dtype": torch.bfloat16}))  # fmt: skip
    reduced = overlapping.optimizer_of(ctx, half.parameters(), "momentum", group)
    ordinary = torch.optim.SGD(model.parameters(), lr=LR)
    objects = [(half, reduced), (model.module, zero), (model, ordinary)]
    others = [caught(factory, library.allreduce_hook, *each) for each in objects]
    alone = [dist.new_group([rank]) for rank in range(ctx.world)][ctx.rank]
    apart = overlapping.optimizer_of(ctx, model.parameters(), "momentum", alone)
    on_others = caught(factory, None, model, apart, reduce_scatter=True)
    return told, [*others, caught(copy.deepcopy, zero)], on_others


@check("HOOK-018", worlds=(1, 2), beyond=False)
def test_keywords_and_objects_that_cannot_be_overlapped_are_refused_where_the_hook_is_made(ranks):
    for rank, (told, others, on_others) in enumerate(ranks(give_each_keyword)):
        assert (on_others is None) == (ranks.world == 1), f"rank {rank}, owners on other ranks: {on_others}"
        assert on_others is None or on_others.is_a(ValueError), f"rank {rank}, owners on other ranks: {on_others}"
        for (keywords, hook, expected), error in zip(KEYWORDS, told, strict=True):
            where = f"rank {rank}, {keywords}, {hook}: {error}"
            assert (error is None) == (expected is None), where
            if expected is not None:
                words, kind = expected
                assert error.is_a(kind), where
                assert words in error.text, where
        kinds = (ValueError, TypeError, TypeError, TypeError)
        for kind, error in zip(kinds, others, strict=True):
            assert error is not None, f"rank {rank}: expected {kind.__name__}"
            assert error.is_a(kind), f"rank {rank}: {error}"


class Table(nn.Module):
    """A table with sparse gradients."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(3, 1, sparse=True)

    def forward(self, x):
        return self.table(x)


def reduce_a_table(ctx):
    group = overlapping.group_of(ctx)
    model = ddp(ctx, Table().to(ctx.device), process_group=group)
    zero = overlapping.optimizer_of(ctx, model.parameters(), "sgd", group)
    model.register_comm_hook(group, overlapping.hook_of(ctx, model, zero, reduce_scatter=True))
    place = torch.tensor([0], device=ctx.device)
    return caught(lambda: model(place).sum().backward())


@check("HOOK-018", worlds=(2,), beyond=False)
def test_sparse_gradients_are_not_reduced_to_owners_and_every_rank_is_told(ranks):
    for rank, error in enumerate(ranks(reduce_a_table)):
        assert error is not None, f"rank {rank}"
        assert error.is_a(RuntimeError), f"rank {rank}: {error}"
        assert "sparse" in error.text, f"rank {rank}: {error}"


# -- JOIN-057: going on without a rank


def averaged(optimizer, group):
    return PostLocalSGDOptimizer(optimizer, PeriodicModelAverager(period=1, process_group=group))


def stepped_in_backward(ctx):
    """By how they are stepped: models that have made a step in their backward."""
    ways = ("attached", "delayed", "fused", "hooked")
    modules = {how: nn.Sequential(models.scalar(), models.scalar()) for how in ways}
    for how in ("attached", "delayed"):
        _apply_optimizer_in_backward(torch.optim.SGD, modules[how][1].parameters(), {"lr": LR})
    first, second = modules["delayed"]
    late = {"delay_all_reduce_named_params": [("1.weight", second.weight)], "param_to_hook_all_reduce": first.weight}
    found = {how: ddp(ctx, module, **(late if how == "delayed" else {})) for how, module in modules.items()}
    private(found["fused"], "_register_fused_optim")(torch.optim.SGD, lr=LR)
    library = ctx.subject.optimizer_overlap_hooks
    state = private(library, "_OptimizerHookState")(OneByOne())
    inner = ctx.subject.default_hooks.allreduce_hook
    found["hooked"].register_comm_hook(None, private(library, "_hook_then_optimizer")(inner, state))
    for model in found.values():
        model(torch.ones(1, 1)).sum().backward()
    return found


class OneByOne:
    """Steps one parameter."""

    def step_param(self, parameter, gradient):
        parameter.sub_(gradient, alpha=LR)


def ask_to_go_on(ctx):
    """What is said to each who cannot go on without a rank, or keep copies in order to; by name, with its class."""
    regroup, zero_of = ctx.subject.regroup, ctx.subject.ZeroRedundancyOptimizer
    model = ddp(ctx, models.scalar())
    ordinary = torch.optim.SGD(model.parameters(), lr=LR)
    sharded = zero_of(model.parameters(), torch.optim.SGD, lr=LR)
    alone = [dist.new_group([rank]) for rank in range(ctx.world)][ctx.rank]
    apart = zero_of(model.parameters(), torch.optim.SGD, lr=LR, process_group=alone)
    apart.keep_mirror()
    told = {
        "sharded without copies": (TypeError, "keep_mirror", caught(regroup, model, sharded, 0)),
        "sharded over others": (ValueError, "process group", caught(regroup, model, apart, 0)),
        "wrapped": (TypeError, "PostLocalSGDOptimizer", caught(regroup, model, averaged(ordinary, ctx.group), 0)),
    }
    for how, stepped in stepped_in_backward(ctx).items():
        plain = torch.optim.SGD(stepped.parameters(), lr=LR)
        told[f"stepped in the backward: {how}"] = (TypeError, "step", caught(regroup, stepped, plain, 1))
    overlapped = zero_of(model.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=LR)
    told["copies with overlap"] = (ValueError, "overlap_with_ddp", caught(overlapped.keep_mirror))
    for distance in (0, -1, ctx.world, True, 1.0):
        told[f"copies at {distance!r}"] = (ValueError, "distance", caught(sharded.keep_mirror, distance))
    with model.join():
        model(models.divisible_scalar(ctx.rank, 0)).sum().backward()
        inside = caught(regroup, model, ordinary, 0)
    told["in a context"] = (RuntimeError, "join context", inside)
    with ctx.subject.Join([sharded]):
        sharded.step()
        inside = caught(sharded.keep_mirror)
    told["copies in a context"] = (RuntimeError, "join context", inside)
    ctx.meet("asked")
    if ctx.rank == 0:  # the other one does not come, though it is there
        error = caught(regroup, model, ordinary, 0, limit_s=0.5)
        told["alone"] = (RuntimeError, "rank", error)
    ctx.meet("refused")
    return told


@check("JOIN-057", worlds=(2,), backends=("gloo",), beyond=False)
def test_who_cannot_go_on_without_a_rank_is_told_so_before_anything_is_changed(ranks):
    for rank, told in enumerate(ranks(ask_to_go_on)):
        for name, (kind, words, error) in told.items():
            assert error is not None, f"rank {rank}, {name}"
            assert error.is_a(kind), f"rank {rank}, {name}: {error}"
            assert words in error.text, f"rank {rank}, {name}: {error}"


def ask_without_a_guard(ctx):
    model = ddp(ctx, models.scalar())
    return caught(ctx.subject.regroup, model, torch.optim.SGD(model.parameters(), lr=LR), 0)


@check("JOIN-057", worlds=(2,), backends=("gloo",), beyond=False)
def test_nobody_goes_on_without_a_guard(ranks):
    for rank, error in enumerate(ranks(ask_without_a_guard, env={DETECTION: "0"})):
        assert error is not None, f"rank {rank}"
        assert error.is_a(RuntimeError), f"rank {rank}: {error}"
        assert DETECTION in error.text, f"rank {rank}: {error}"
