"""Buffers: when they follow rank 0, which of them do, and when they are left alone."""

import copy
import itertools
import warnings
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import distribute_tensor, init_device_mesh

from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.observing import assert_refused, mean_of_all, mine, started, takes, trained, wrapped
from conformance.fixtures.training import private, scalar_means, whole
from conformance.ranks import caught


def step_of(rank):
    """What a forward on this rank adds to the counter: 1, 11, 21 …"""
    return 1.0 + 10.0 * rank


def counting(ctx, **options):
    """A counter under DDP; old and new names of arguments are equally welcome here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return wrapped(ctx, models.Counting(step_of(ctx.rank)), **options)


# -- DDP-080, DDP-088: buffers follow rank 0


def count(ctx, evaluate, iterations):
    model = counting(ctx)
    model.train(not evaluate)
    for _ in range(iterations):
        trained(model, mine(ctx))
    return model.module.seen


@check("DDP-080", "DDP-088", scenarios={"training": False, "evaluation mode": True})
def test_every_forward_begins_with_the_buffers_of_rank_0(ranks, scenario):
    assert ranks(count, scenario, 4) == [[0.0, 1.0, 2.0, 3.0]] * ranks.world


def count_until_evaluated(ctx, mode):
    model = counting(ctx)
    for _ in range(2):
        trained(model, mine(ctx))
    model.eval()
    with mode():
        model(mine(ctx))
    model.train()
    trained(model, mine(ctx))
    return model.module.seen


@check("DDP-088", worlds=MANY, scenarios={"no_grad": torch.no_grad, "inference": torch.inference_mode})
def test_an_evaluation_on_all_ranks_begins_with_the_buffers_of_rank_0(ranks, scenario):
    for rank, seen in enumerate(ranks(count_until_evaluated, scenario)):
        assert seen[:3] == [0.0, 1.0, 2.0], f"rank {rank} evaluated with buffers of its own: {seen}"


def count_without_gradients(ctx):
    """In training mode, as to estimate statistics anew."""
    model = counting(ctx)
    for _ in range(2):
        trained(model, mine(ctx))
    with torch.no_grad():
        model(mine(ctx))
    return model.module.seen


@check("DDP-080", worlds=MANY)
def test_a_forward_in_training_mode_without_gradients_begins_with_the_buffers_of_rank_0(ranks):
    assert ranks(count_without_gradients) == [[0.0, 1.0, 2.0]] * ranks.world


def disturb_between_forwards(ctx):
    model = counting(ctx)
    for _ in range(3):
        trained(model, mine(ctx))
        model.module.count += 100.0 * (ctx.rank + 1)
    return model.module.seen


@check("DDP-080")
def test_what_rank_0_has_done_to_its_buffers_since_the_last_forward_counts_too(ranks):
    assert ranks(disturb_between_forwards) == [[0.0, 101.0, 202.0]] * ranks.world


def count_in_subgroup(ctx):
    members = list(range(1, ctx.world))[::-1]  # the group's rank 0 is still the smallest: groups are sorted
    group = dist.new_group(members)
    if ctx.rank == 0:
        return None
    model = counting(ctx, process_group=group)
    for _ in range(3):
        trained(model, mine(ctx))
    return model.module.seen


@check("DDP-080", worlds=(3, 4))
def test_in_a_subgroup_buffers_follow_its_own_rank_0(ranks):
    assert ranks(count_in_subgroup)[1:] == [[0.0, 11.0, 22.0]] * (ranks.world - 1)


class Part(nn.Module):
    """Nothing but a buffer."""

    def __init__(self, value):
        super().__init__()
        self.register_buffer("value", value)


#: by the name of what is new: how a layer without buffers is given its first one
GIVEN = {
    "promised": lambda layer, value: setattr(layer, "promised", value),  # None is registered there
    "late": lambda layer, value: layer.register_buffer("late", value),
    "part": lambda layer, value: layer.add_module("part", Part(value)),
}


def give_first_buffers(ctx):
    """Between forwards each rank gives the model a buffer with a value of its own, takes it away and gives another."""
    told = []
    for name, give in GIVEN.items():
        layer = models.scalar()
        layer.register_buffer("promised", None)
        model = wrapped(ctx, layer)
        for start in (10.0, 20.0):
            trained(model, mine(ctx))
            give(layer, torch.full((1,), start + ctx.rank, device=ctx.device))
            trained(model, mine(ctx))
            told.append([buffer.item() for buffer in layer.buffers()])
            setattr(layer, name, None)
    return told


@check("DDP-080", worlds=MANY)
def test_the_first_buffer_of_a_model_follows_rank_0_whenever_it_is_given(ranks):
    assert ranks(give_first_buffers) == [[[10.0], [20.0]] * len(GIVEN)] * ranks.world


# -- DDP-081: the three conditions


def toggle_conditions(ctx):
    model = counting(ctx)
    told = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        none = wrapped(ctx, models.scalar())
    off = counting(ctx, broadcast_buffers=False)
    for name, each in (("all three", model), ("no buffers", none), ("switched off", off)):
        told[name] = bool(private(each, "will_sync_module_buffers")())
    with model.no_sync():
        model(mine(ctx)).sum().backward()
    told["after a forward without synchronisation"] = bool(model.will_sync_module_buffers())
    model(mine(ctx)).sum().backward()
    told["after one with it"] = bool(model.will_sync_module_buffers())
    return told


@check("DDP-081", worlds=(1, 2))
def test_buffers_are_synchronised_only_if_allowed_wanted_and_there(ranks):
    assert ranks(toggle_conditions) == [{
        "all three": True, "no buffers": False, "switched off": False,
        "after a forward without synchronisation": False, "after one with it": True,
    }] * ranks.world  # fmt: skip


def listen_to_forwards(ctx):
    told = {}
    models_ = {"all three": counting(ctx), "no buffers": wrapped(ctx, models.scalar()),
               "switched off": counting(ctx, broadcast_buffers=False)}  # fmt: skip
    for name, model in models_.items():
        trained(model, mine(ctx)), trained(model, mine(ctx))  # the second may say in which order buckets are rebuilt
        outputs = []
        told[name] = len(started(ctx, lambda model=model, outputs=outputs: outputs.append(model(mine(ctx)))))
        outputs[0].sum().backward()
    model = models_["all three"]
    evaluate(model, mine(ctx), torch.no_grad)
    told["a second evaluation"] = len(started(ctx, lambda: evaluate(model, mine(ctx), torch.no_grad)))
    return told


@check("DDP-081", worlds=MANY)
def test_a_forward_sends_nothing_unless_there_are_buffers_to_synchronise(ranks):
    for told in ranks(listen_to_forwards, trace=True):
        if told.pop("a second evaluation"):  # whether an evaluation allows it to the next forward, no document says
            ranks.at_limit("a second evaluation in a row synchronises buffers once more")
        needless = {name: sent for name, sent in told.items() if name != "all three" and sent}
        assert told["all three"] >= 1, "nothing was sent although there are buffers to synchronise"
        assert not needless, f"collectives that were started for nothing: {needless}"


def ask_before_forwards(ctx):
    """What the model says of the forward that is next, and what that then sends, where one kind follows another."""
    model, told = counting(ctx), []
    trained(model, mine(ctx)), trained(model, mine(ctx))  # the second may say in which order buckets are rebuilt
    for train, grad, sync in itertools.product((True, False), repeat=3):
        for before in (True, False):  # the mode of the forward before it, in which all ranks train
            model.train(before)
            trained(model, mine(ctx))
            model.train(train)
            with nullcontext() if sync else model.no_sync(), torch.set_grad_enabled(grad):
                says = bool(private(model, "will_sync_module_buffers")())
                sent = len(started(ctx, lambda: model(mine(ctx))))
            told.append((says, sent > 0, f"{before=}, {train=}, {grad=}, {sync=}"))
    return told


@check("DDP-081", "DDP-088", worlds=MANY)
def test_a_forward_synchronises_if_and_only_if_the_model_has_said_so_just_before(ranks):
    for told in ranks(ask_before_forwards, trace=True):
        assert any(says for says, _, _ in told), "before no forward did the model say that it would synchronise"
        for says, sends, which in told:
            assert says == sends, which


def accumulate_beside_evaluating(ctx, before):
    """What three forwards found, one under no_sync and two after it; ``before`` which of them is an evaluation."""
    model, found = counting(ctx), []
    trained(model, mine(ctx))
    for number in range(3):
        if number == before:
            with torch.no_grad():
                model(mine(ctx))
        with nullcontext() if number else model.no_sync():
            model(mine(ctx)).sum().backward()
        found.append(model.module.seen[-1])
    return found


@check("DDP-081", worlds=MANY)
def test_an_evaluation_before_it_does_not_let_the_forward_after_accumulation_synchronise(ranks):
    # by DDP-078 an implementation may synchronise there, but then it does so without an evaluation, too
    ways = set()
    for before, told in ranks.each(accumulate_beside_evaluating, (None, 0, 1)):
        kept = [within + step_of(rank) * (1 + (before == 1)) for rank, (within, _, _) in enumerate(told)]
        ways.add(synchronises := told[-1][1] != kept[-1])
        for rank, (_, after, last) in enumerate(told):
            assert after == kept[0 if synchronises else rank], f"rank {rank}: neither its own buffer nor rank 0's"
            assert last == told[0][1] + step_of(0), f"rank {rank}"
    assert len(ways) == 1, "an evaluation decides whether the forward after accumulation synchronises"


# -- DDP-082, DDP-083: switching it off


def count_from_different_starts(ctx, options):
    if "forward_sync_buffers" in options:
        takes(ctx, "forward_sync_buffers")
    module = models.Counting(step_of(ctx.rank)).to(ctx.device)
    module.count.fill_(100.0 * (ctx.rank + 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model = wrapped(ctx, module, **options)
    gradients = [trained(model, mine(ctx))["a.weight"][0] for _ in range(3)]
    return module.seen, gradients


def local_counts(ranks, start):
    return [[start(rank) + step_of(rank) * iteration for iteration in range(3)] for rank in range(ranks.world)]


@check("DDP-082")
def test_without_broadcast_buffers_stay_as_each_rank_has_them(ranks):
    told = ranks(count_from_different_starts, {"broadcast_buffers": False})
    assert [seen for seen, _ in told] == local_counts(ranks, lambda rank: 100.0 * (rank + 1))
    assert [gradients for _, gradients in told] == [[mean_of_all(ranks.world)] * 3] * ranks.world


@check("DDP-083", scenarios={
    "alone": {"forward_sync_buffers": False},
    "against the old name": {"forward_sync_buffers": False, "broadcast_buffers": True},
})  # fmt: skip
def test_the_newer_switch_leaves_the_start_equal_and_silences_the_forwards(ranks, scenario):
    seen = [each for each, _ in ranks(count_from_different_starts, scenario)]
    assert seen == local_counts(ranks, lambda _rank: 100.0)


@check("DDP-083")
def test_the_newer_switch_wins_when_it_is_on_too(ranks):
    options = {"forward_sync_buffers": True, "broadcast_buffers": False}
    assert [seen for seen, _ in ranks(count_from_different_starts, options)] == [[100.0, 101.0, 102.0]] * ranks.world


@check("DDP-083")
def test_beside_the_newer_switch_the_old_one_says_nothing_about_the_start(ranks):
    options = {"forward_sync_buffers": False, "broadcast_buffers": False}
    seen = [each for each, _ in ranks(count_from_different_starts, options)]
    assert seen == local_counts(ranks, lambda _rank: 100.0)


# -- DDP-084, DDP-085, DDP-087: which buffers


def replace_the_buffer(ctx):
    model = counting(ctx)
    trained(model, mine(ctx))
    model.module.count = torch.full((1,), 100.0 + ctx.rank, device=ctx.device)
    trained(model, mine(ctx))
    model.module.count = torch.full((2,), 200.0 + ctx.rank, device=ctx.device)[1:]
    trained(model, mine(ctx))
    seen, other = model.module.seen, models.Counting(step_of(ctx.rank)).to(ctx.device)
    other.count.fill_(300.0 + ctx.rank)
    other.a = model.module.a
    model.module = other  # a module in its place: the same layer, and a buffer of its own
    trained(model, mine(ctx))
    return seen + other.seen


def replace_buffers_under_a_hook(ctx):
    """A hook's dictionary by iteration, where a buffer is replaced, then taken away and a new one added."""
    model, given = counting(ctx), []
    before = private(ctx.subject.ddp, "_BufferCommHookLocation").PRE_FORWARD

    def hook(_state, buffers):
        given.append({name: buffer is model.module.get_buffer(name) for name, buffer in buffers.items()})

    private(model, "_register_buffer_comm_hook")(None, hook, before)
    trained(model, mine(ctx))
    model.module.count = torch.full((1,), 100.0 + ctx.rank, device=ctx.device)
    trained(model, mine(ctx))
    model.module.register_buffer("later", torch.full((3,), 5.0 + ctx.rank, dtype=torch.float64, device=ctx.device))
    trained(model, mine(ctx))
    return given


def add_a_buffer_later(ctx):
    model = counting(ctx)
    trained(model, mine(ctx))
    model.module.register_buffer("later", torch.full((3,), 5 + ctx.rank, device=ctx.device))
    trained(model, mine(ctx))
    return model.module.later.tolist()


@check("DDP-084", worlds=MANY)
def test_buffers_are_looked_up_anew_for_hooks_and_broadcasts(ranks):
    count, later = {"count": True}, {"count": True, "later": True}
    assert ranks(replace_buffers_under_a_hook) == [[count, count, later]] * ranks.world
    assert ranks(add_a_buffer_later) == [[5, 5, 5]] * ranks.world


def look_up_by_hand(ctx):
    """The buffers that are known once one has been registered and looked up, and tensors sent by the last rank."""
    model, sent = counting(ctx), [torch.full((3,), 5.0 + ctx.rank, device=ctx.device) for _ in range(2)]
    model.module.register_buffer("later", torch.zeros(3, device=ctx.device))
    private(model, "_assign_modules_buffers")()
    known = sorted(private(model, "named_module_buffers")), len(private(model, "modules_buffers"))
    private(model, "_distributed_broadcast_coalesced")(sent[:1], 8, ctx.world - 1)
    private(model, "_default_broadcast_coalesced")(sent[1:], 8, ctx.world - 1)
    return known, [each.tolist() for each in sent]


@check("DDP-084", worlds=MANY, beyond=False)
def test_buffers_are_looked_up_and_sent_by_hand_too(ranks):
    sent = [[5.0 + ranks.world - 1] * 3] * 2
    assert ranks(look_up_by_hand) == [((["count", "later"], 2), sent)] * ranks.world


@check("DDP-084")
def test_a_buffer_that_the_module_replaced_is_followed(ranks):
    assert ranks(replace_the_buffer) == [[0.0, 100.0, 200.0, 300.0]] * ranks.world


class Spared(nn.Module):
    """Its only buffer is used by nobody."""

    def __init__(self, value):
        super().__init__()
        self.layer = models.scalar()
        self.register_buffer("spare", torch.full((4,), value))

    def forward(self, x):
        return self.layer(x)


def take_the_only_buffer_away(ctx):
    model, seen = wrapped(ctx, Spared(float(ctx.rank))), []
    for number in range(3):
        if number:
            model.module._buffers.pop("spare", None)
        model.zero_grad()
        model(models.divisible_scalar(ctx.rank, number)).sum().backward()
        seen.append(model.module.layer.weight.grad.item())
    return seen


@check("DDP-084", worlds=MANY, beyond=False)
def test_training_goes_on_without_the_only_buffer(ranks):
    assert ranks.subject.PeerFailed  # torch's own fails by an assertion of its C++ code; no document speaks of it
    assert ranks(take_the_only_buffer_away) == [scalar_means((3,) * ranks.world)] * ranks.world


def empty_on_some(ctx, emptied):
    """How a forward ended before which some ranks have replaced their only buffer by one without elements."""
    model = wrapped(ctx, Spared(float(ctx.rank)))
    trained(model, mine(ctx))
    if ctx.rank in emptied:
        model.module.spare = torch.zeros(0, device=ctx.device)
    return caught(model, mine(ctx))


@check("DDP-080", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=8)
def test_ranks_whose_buffers_have_no_elements_where_those_of_rank_0_have_some_are_told(ranks):
    assert ranks.subject.PeerFailed  # others abort
    for emptied in ({0}, set(range(1, ranks.world))):
        first, *others = ranks(empty_on_some, emptied)
        assert first is None, f"rank 0, empty on {emptied}: {first}"
        assert all(error is not None and error.is_a(RuntimeError) for error in others), f"empty on {emptied}: {others}"


LONG = 20  # elements of the buffer in the middle, at first


class Resized(nn.Module):
    """Three buffers of one dtype, of which the second may be replaced by one of another size."""

    def __init__(self, rank):
        super().__init__()
        self.a = models.scalar()
        for name, size in (("before", 1), ("middle", LONG), ("behind", 1)):
            self.register_buffer(name, torch.full((size,), 10.0 + rank))

    def forward(self, x):
        return self.a(x)


def resize_on_some(ctx, first, others):
    """The buffer behind the one that has another size on group rank 0 than elsewhere, and how the forward ended."""
    model = wrapped(ctx, Resized(ctx.rank))
    trained(model, mine(ctx))
    module = model.module
    size = others if ctx.rank else first
    if size != LONG:
        module.middle = torch.full((size,), 20.0 + ctx.rank, device=ctx.device)
    module.behind.fill_(30.0 + ctx.rank)
    return caught(model, mine(ctx)), module.behind.tolist()


@check(
    "DDP-080", worlds=(2, 3), backends=("gloo",), beyond=False,
    scenarios={
        "rank 0 has more": (LONG + 1, LONG), "rank 0 has fewer": (1, LONG), "others have more": (LONG, LONG + 1),
        "others have fewer": (LONG, 1), "both have changed": (2, 3),
    },
)  # fmt: skip
def test_buffers_of_another_size_on_some_ranks_bring_no_rank_another_ones_numbers(ranks, scenario):
    told = ranks(resize_on_some, *scenario)
    errors = [error for error, _ in told if error is not None]
    assert all(error.is_a(RuntimeError) for error in errors), errors
    assert [[30.0] if error else behind for error, behind in told] == [[30.0]] * ranks.world
    if errors:
        ranks.at_limit("buffers whose sizes differ between ranks are refused")


def ignore_a_buffer(ctx):
    left, right = models.Counting(step_of(ctx.rank)), models.Counting(step_of(ctx.rank))
    module = nn.Sequential(left, right).to(ctx.device)
    left.count.fill_(1000.0 * ctx.rank)
    private(ctx.subject.DistributedDataParallel, "_set_params_and_buffers_to_ignore_for_model")(module, ["0.count"])
    model = wrapped(ctx, module)
    trained(model, mine(ctx)), trained(model, mine(ctx))
    names = set()
    private(model, "_register_buffer_comm_hook")(None, lambda _state, buffers: names.update(buffers))
    trained(model, mine(ctx))
    return left.seen, right.seen[:2], names


@check("DDP-085")
def test_ignored_buffers_are_never_touched(ranks):
    for rank, (ignored, managed, names) in enumerate(ranks(ignore_a_buffer)):
        assert ignored == [1000.0 * rank + step_of(rank) * iteration for iteration in range(3)], f"rank {rank}"
        assert managed == [0.0, 1.0]
        assert names == {"1.count"}


class Assorted(nn.Module):
    """Buffers of many kinds, which change in every forward by an amount that depends on the rank."""

    def __init__(self, rank):
        super().__init__()
        self.a = models.scalar()
        self.rank, self.seen = rank, []
        self.register_buffer("whole", torch.tensor([10, 20]) + rank)
        self.register_buffer("flag", torch.tensor([rank % 2 == 0, True]))
        self.register_buffer("hidden", torch.full((2, 2), 5.0 + rank), persistent=False)
        self.register_buffer("short", torch.full((3,), 0.5 * rank, dtype=torch.bfloat16))
        self.register_buffer("precise", torch.full((1,), 1.0 + rank, dtype=torch.float64))
        self.register_buffer("lone", torch.tensor(7 - rank, dtype=torch.int8))
        self.register_buffer("turned", torch.arange(6.0).reshape(2, 3).add(rank).t())

    def forward(self, x):
        self.seen.append({name: buffer.tolist() for name, buffer in self.named_buffers()})
        for buffer in self.buffers():
            buffer.copy_(~buffer if buffer.dtype == torch.bool else buffer + self.rank + 1)
        return self.a(x)


def mix_kinds(ctx):
    model = wrapped(ctx, Assorted(ctx.rank))
    started_as = {name: buffer.tolist() for name, buffer in model.module.named_buffers()}
    for _ in range(2):
        trained(model, mine(ctx))
    return started_as, model.module.seen


@check("DDP-087")
def test_integer_boolean_and_non_persistent_buffers_are_covered(ranks):
    alone = Assorted(0)
    for _ in range(2):
        alone(torch.ones(1, 1))
    for rank, (started_as, seen) in enumerate(ranks(mix_kinds)):
        assert started_as == alone.seen[0], f"rank {rank} after construction"
        assert seen == alone.seen, f"rank {rank} at its forwards"


# -- DDP-086: the graph of an earlier forward


class Scaling(nn.Module):
    """Multiplies by a buffer, which the graph therefore keeps."""

    def __init__(self):
        super().__init__()
        self.a = models.scalar()
        self.norm = nn.BatchNorm1d(1, affine=False).eval()
        self.register_buffer("scale", torch.full((1,), 2.0))

    def forward(self, x):
        return self.a(x) * self.scale + 0 * self.norm(self.a(x))


def forward_twice(ctx):
    model = wrapped(ctx, Scaling())
    told = []
    for _ in range(2):
        model.zero_grad()
        first, second = model(mine(ctx)), model(mine(ctx, 3))
        (first + second).sum().backward()
        told.append(whole(model.module.a.weight.grad).item())
    return told


@check("DDP-086")
def test_synchronising_buffers_leaves_the_graph_of_an_earlier_forward_usable(ranks):
    assert ranks(forward_twice) == [[pytest.approx(2 * mean_of_all(ranks.world, 4))] * 2] * ranks.world


# -- DDP-089, DDP-090: when ranks may see buffers of their own


def evaluate_between(ctx):
    model = counting(ctx)
    trained(model, mine(ctx))
    with torch.no_grad():
        model(mine(ctx)), model(mine(ctx))
    trained(model, mine(ctx)), trained(model, mine(ctx))
    return model.module.seen


@check("DDP-089", worlds=MANY)
def test_training_after_evaluation_begins_with_the_buffers_of_rank_0(ranks):
    told = ranks(evaluate_between)
    assert told[0] == [0.0, 1.0, 2.0, 3.0, 4.0]
    for rank, seen in enumerate(told):
        assert seen[1] in (1.0, step_of(rank)), f"rank {rank} at its first forward without gradients"
        assert seen[2] in (2.0, seen[1] + step_of(rank)), f"rank {rank} at its second forward without gradients"
        assert seen[3:] == [3.0, 4.0], f"rank {rank} trained with buffers of its own: {seen}"


def evaluate(model, x, mode):
    with mode():
        model(x)


def fail_in_evaluation(model, x):
    error = caught(evaluate, model, torch.ones(3, 3), torch.no_grad)  # of a shape that its layer refuses
    assert error is not None


def evaluate_in_turn(model, x):
    for train in (False, True):
        model.train(train)
        evaluate(model, x, torch.no_grad)


def evaluate_within_no_sync(model, x):
    model.eval()
    with model.no_sync():
        evaluate(model, x, torch.no_grad)
    model.train()


def evaluate_and_copy(model, x):
    for _ in range(2):  # of which the second is not synchronised
        evaluate(model, x, torch.no_grad)
    return copy.deepcopy(model)


COPIED = "a copy that is made behind it"
BETWEEN = {
    "inference mode": lambda model, x: evaluate(model, x, torch.inference_mode),
    "in evaluation mode and out of it": evaluate_in_turn,
    "an evaluation that fails": fail_in_evaluation,
    "under no_sync": evaluate_within_no_sync,
    "the wrapped module": lambda model, x: evaluate(model.module, x, torch.no_grad),
    COPIED: evaluate_and_copy,
}


def evaluate_in_every_way(ctx):
    """By way: what the training forwards began with, after evaluations before, between and after iterations."""
    told = {}
    for how, act in BETWEEN.items():
        if how == COPIED and "pickling" in ctx.subject.lacks:
            continue
        model = counting(ctx)
        told[how] = []
        for _ in range(4):
            model = act(model, mine(ctx)) or model
            before = len(model.module.seen)
            trained(model, mine(ctx))
            told[how].append(model.module.seen[before])
    return told


@check("DDP-089", worlds=MANY)
def test_training_after_an_evaluation_of_any_kind_begins_with_the_buffers_of_rank_0(ranks):
    first, *others = ranks(evaluate_in_every_way)
    for rank, told in enumerate(others, start=1):
        for how, seen in told.items():
            assert seen == first[how], f"rank {rank} trained with buffers of its own: {how}: {seen}, not {first[how]}"


def look_at_the_end(ctx):
    model = counting(ctx)
    for _ in range(3):
        trained(model, mine(ctx))
    return model.module.count.item()


@check("DDP-090", worlds=MANY)
def test_after_the_last_iteration_a_rank_is_ahead_by_its_own_forward_at_most(ranks):
    found = ranks(look_at_the_end)
    if found == [3.0] * ranks.world:
        return
    assert found == [2.0 + step_of(rank) for rank in range(ranks.world)]
    ranks.at_limit("what the last forward did to buffers differs between ranks until the next one")


# -- DDP-025: what cannot be broadcast


def hold_what_cannot_be_sent(ctx, kind, place):
    model = models.scalar()
    odd = torch.ones(4)
    if kind == "sparse":
        odd = odd.to_sparse()
    elif kind == "quantized":
        odd = torch.quantize_per_tensor(odd, 0.5, 0, torch.qint8)
    else:
        odd = distribute_tensor(odd, init_device_mesh("cpu", (ctx.world,)))
    if place == "buffer":
        model.register_buffer("odd", odd)
    else:
        model.register_parameter("odd", nn.Parameter(odd, requires_grad=False))
    return caught(wrapped, ctx, model)


@check("DDP-025", worlds=(2,), backends=("gloo",), beyond=False)
def test_what_cannot_be_broadcast_is_refused_on_every_rank(ranks):
    for kind, place in itertools.product(("sparse", "quantized", "distributed"), ("buffer", "frozen parameter")):
        errors = ranks(hold_what_cannot_be_sent, kind, place)
        assert_refused(errors, RuntimeError)
        assert len({error.text for error in errors}) == 1, f"one rank met it, another waited for that rank: {errors}"


# -- DDP-080: buffers without elements


class Empty(nn.Module):
    """Its only buffer has no elements."""

    def __init__(self):
        super().__init__()
        self.layer = models.scalar()
        self.register_buffer("nothing", torch.zeros(0, 3))

    def forward(self, x):
        return self.layer(x) + self.nothing.sum()


def train_with_nothing_to_send(ctx):
    model = wrapped(ctx, Empty())
    for number in range(3):
        model.zero_grad()
        model(models.divisible_scalar(ctx.rank, number)).sum().backward()
    return model.module.layer.weight.grad.item()


@check("DDP-080", worlds=(1, 2, 3), beyond=False)
def test_a_buffer_without_elements_is_in_nobodys_way(ranks):
    [*_, last] = scalar_means((3,) * ranks.world)
    assert ranks(train_with_nothing_to_send) == [last] * ranks.world
