"""Sparse gradients where a model is less plain: a shared table, groups that become one, single elements."""

import re

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from conformance.api import oracle
from conformance.api.checking import MANY, WORLDS, check
from conformance.fixtures import models
from conformance.fixtures.errors import fail
from conformance.fixtures.observing import mean_of_all, mine, started
from conformance.fixtures.training import ddp, private, whole
from conformance.ranks import caught


class Tied(nn.Module):
    """A sparse table whose weight is also that of a layer: its gradient is a dense one."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6, 2, sparse=True)
        nn.init.constant_(self.table.weight, 2.0)
        self.out = nn.Linear(2, 6, bias=False)
        self.out.weight = self.table.weight

    def forward(self, rows):
        return 3 * self.out(self.table(rows))


def weight_of(model):
    found = whole(model.module.table.weight.grad)
    return (found.to_dense() if found.is_sparse else found).flatten().tolist()


def train_tied(ctx):
    model = ddp(ctx, Tied().to(ctx.device))
    told = []
    for iteration in range(3):
        model.zero_grad(set_to_none=True)
        model(models.rows(ctx.rank, iteration).to(ctx.device)).sum().backward()
        told.append((model.module.table.weight.grad.is_sparse, weight_of(model)))
    return told


@check("DDP-056", worlds=MANY, beyond=False)
def test_a_table_that_a_layer_shares_is_averaged_too_and_its_gradient_stays_dense(ranks):
    expected = []
    for iteration in range(3):
        found = [oracle.local_gradients(Tied(), models.rows(rank, iteration)) for rank in range(ranks.world)]
        expected.append((False, (sum(each["table.weight"] for each in found) / ranks.world).flatten().tolist()))
    assert ranks(train_tied) == [expected] * ranks.world


class Table(nn.Module):
    """A sparse table; the gradient of a row is twelve for each time that it is looked up."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(32, 2, sparse=True)

    def forward(self, rows):
        return 12 * self.table(rows)


def rows_of(rank, iteration):
    """Every pair of ranks looks up another number of rows."""
    return models.integers(1 + 7 * (rank // 2), seed=10 * rank + iteration, low=0, high=32).long()


def train_in_pairs_then_together(ctx):
    pairs = [dist.new_group([first, first + 1]) for first in range(0, ctx.world, 2)]
    model = ddp(ctx, Table().to(ctx.device), process_group=pairs[ctx.rank // 2])
    told = []
    for iteration in range(5):
        if iteration == 3:
            private(model, "_update_process_group")(ctx.group)
        model.zero_grad(set_to_none=True)
        model(rows_of(ctx.rank, iteration).to(ctx.device)).sum().backward()
        told.append(whole(model.module.table.weight.grad).to_dense().flatten().tolist())
    return told


@check("DDP-162", "DDP-057", worlds=(4,), beyond=False)
def test_groups_that_became_one_average_their_sparse_gradients(ranks):
    for rank, told in enumerate(ranks(train_in_pairs_then_together)):
        for iteration, seen in enumerate(told):
            first = rank // 2 * 2
            members = range(ranks.world) if iteration >= 3 else range(first, first + 2)
            found = [oracle.local_gradients(Table(), rows_of(each, iteration))["table.weight"] for each in members]
            mean = sum(each.to_dense() for each in found) / len(members)
            assert seen == mean.flatten().tolist(), f"rank {rank}, iteration {iteration}"


# -- rows that differ in number from iteration to iteration, and in what they hold

#: Rows in each iteration, on even and on odd ranks. They settle at four, of which the latter then have fewer.
LOOKED_UP = ((2, 3), (1, 2), (5, 6), (7, 8), (7, 8), (4, 4), (4, 4), (4, 2), (3, 4))


class Weighed(nn.Module):
    """Sparse tables of different widths; each row that is looked up has a gradient of its own.

    In double precision one that no float holds.
    """

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(32, width, sparse=True) for width in (3, 2, 1)])

    def forward(self, rows):
        dtype = self.tables[0].weight.dtype
        each = 1 + rows.to(dtype).view(-1, 1) + (2.0**-40 if dtype == torch.float64 else 0)
        return torch.cat([12 * table(rows) * each for table in self.tables], dim=1)


def tables_of(module, divisor=1):
    """The gradients of all tables, in one row."""
    found = [whole(table.weight.grad).to_dense() / divisor for table in module.tables]
    return torch.cat(found, dim=1).flatten().tolist()


def growing_rows(rank, iteration):
    return torch.arange(LOOKED_UP[iteration][rank % 2]) * (1 + rank)


def look_up_more_and_more(ctx, options, cast):
    """``cast``: the model becomes one of double precision before the last iteration."""
    model, told = ddp(ctx, Weighed().to(ctx.device), **options), []
    for iteration in range(len(LOOKED_UP)):
        if cast and iteration == len(LOOKED_UP) - 1:
            model.double()
        model.zero_grad(set_to_none=True)
        model(growing_rows(ctx.rank, iteration).to(ctx.device)).sum().backward()
        told.append(tables_of(model.module))
    return told


def more_and_more_alone(world, cast):
    expected = []
    for iteration in range(len(LOOKED_UP)):
        model = Weighed()
        if cast and iteration == len(LOOKED_UP) - 1:
            model.double()
        for rank in range(world):
            model(growing_rows(rank, iteration)).sum().backward()
        expected.append(tables_of(model, world))
    return expected


def averaged_row_by_row(ranks, options, cast=False):
    expected = more_and_more_alone(ranks.world, cast)
    for rank, told in enumerate(ranks(look_up_more_and_more, options, cast)):
        for iteration, (seen, mean) in enumerate(zip(told, expected, strict=True)):
            assert seen == mean, f"rank {rank}, iteration {iteration}, {options}"


@check("DDP-057", "DDP-049", worlds=MANY, beyond=False)
def test_tables_of_which_more_and_less_is_looked_up_are_averaged_row_by_row(ranks):
    for options in ({}, {"find_unused_parameters": True}):
        averaged_row_by_row(ranks, options)


@check("DDP-034", worlds=MANY, beyond=False)
def test_a_model_that_was_cast_has_its_tables_averaged_row_by_row(ranks):
    averaged_row_by_row(ranks, {}, cast=True)


# -- tables whose rows are added up: what autograd passes on is one and the same memory for both


class Added(nn.Module):
    """The rows of two tables, added up: as of words and of their places in a sentence."""

    def __init__(self):
        super().__init__()
        self.words, self.places = (nn.Embedding(6, 2, sparse=True) for _ in range(2))

    def forward(self, rows):
        return 12 * (self.words(rows) + self.places(rows))


def one_or_two(rank, iteration):
    return models.rows(rank, iteration)[: 1 + iteration % 2]


def look_up_and_add(ctx, hooked):
    """``hooked``: by a hook that divides in place."""
    model, told = ddp(ctx, Added().to(ctx.device)), []
    if hooked:
        model.register_comm_hook(ctx.group, allreduce_hook)
    for iteration in range(3):
        model.zero_grad(set_to_none=True)
        model(one_or_two(ctx.rank, iteration).to(ctx.device)).sum().backward()
        told.append([whole(each.grad).to_dense().tolist() for each in model.parameters()])
    return told


@check("DDP-057", worlds=MANY, beyond=False)
def test_tables_whose_rows_are_added_up_are_averaged_each_by_itself(ranks):
    expected = []
    for iteration in range(3):
        found = [oracle.local_gradients(Added(), one_or_two(rank, iteration)) for rank in range(ranks.world)]
        sums = [sum(each[f"{name}.weight"].to_dense() for each in found) for name in ("words", "places")]
        expected.append([(each / ranks.world).tolist() for each in sums])
    for hooked, results in ranks.each(look_up_and_add, (False, True)):
        for rank, told in enumerate(results):
            assert told == expected, f"rank {rank}, {hooked=}"


# -- gradients that are sparse in both dimensions


class Gathered(nn.Module):
    """Single elements of a table, whose gradient then is sparse in its columns, too; and rows of another."""

    def __init__(self):
        super().__init__()
        self.table, self.whole = nn.Embedding(4, 3, sparse=True), nn.Embedding(4, 2, sparse=True)

    def forward(self, places):
        elements = torch.gather(self.table.weight, 1, places, sparse_grad=True)
        return torch.cat((12 * elements, 12 * self.whole(places[:, 0])))


def places_of(rank, iteration):
    """In as many rows as it is the rank's turn to look at, none among them, two columns that may be the same one."""
    count = (rank + iteration) % 4
    return torch.tensor([[(rank + row) % 3, (iteration * row) % 3] for row in range(count)]).long().view(count, 2)


def gather_elements(ctx):
    """The last iteration adds to the gradient of the one before."""
    model, told = ddp(ctx, Gathered().to(ctx.device)), []
    for iteration in range(4):
        if iteration < 3:
            model.zero_grad(set_to_none=True)
        model(places_of(ctx.rank, iteration).to(ctx.device)).sum().backward()
        held = [each.weight.grad for each in (model.module.table, model.module.whole)]
        told.append([(each.is_sparse, whole(each).to_dense().tolist()) for each in held])
    return told


@check("DDP-057", worlds=WORLDS, beyond=False)
def test_a_table_of_which_single_elements_are_gathered_is_averaged_element_by_element(ranks):
    expected = []
    for iteration in range(4):
        found = [oracle.local_gradients(Gathered(), places_of(rank, iteration)) for rank in range(ranks.world)]
        means = [sum(each[f"{name}.weight"].to_dense() for each in found) / ranks.world for name in ("table", "whole")]
        expected.append([a + b for a, b in zip(means, expected[-1], strict=True)] if iteration == 3 else means)
    told = [[(True, mean.tolist()) for mean in means] for means in expected]
    assert ranks(gather_elements) == [told] * ranks.world


# -- many rows


class Large(nn.Module):
    """A sparse table of many rows and columns; the gradient of a row is twelve for each time that it is looked up."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6000, 64, sparse=True)

    def forward(self, rows):
        return 12 * self.table(rows)


def many_rows(rank):
    """Of the first hundreds each rank looks up a part twice."""
    return torch.cat([torch.arange(5000), torch.arange(100 * (1 + rank))])


def look_up_many(ctx):
    model, told = ddp(ctx, Large().to(ctx.device)), []
    for _ in range(3):
        model.zero_grad(set_to_none=True)
        model(many_rows(ctx.rank).to(ctx.device)).sum().backward()
        found = whole(model.module.table.weight.grad).to_dense()
        told.append((found[:, 0].tolist(), bool((found == found[:, :1]).all())))
    return told


@check("DDP-057", worlds=(2, 3), beyond=False)
def test_tables_of_which_very_much_is_looked_up_are_averaged_row_by_row(ranks):
    times = sum(torch.bincount(many_rows(rank), minlength=6000) for rank in range(ranks.world))
    expected = [((12 * times / ranks.world).tolist(), True)] * 3
    for rank, told in enumerate(ranks(look_up_many)):
        assert told == expected, f"rank {rank}"


# -- a backward that failed beside the rows


class Behind(nn.Module):
    """A sparse table whose gradient comes before that of a layer, where backward fails if it is to."""

    fails = ""  # where: amid the model, or behind it

    def __init__(self):
        super().__init__()
        self.layer, self.table = models.scalar(), nn.Embedding(4, 1, sparse=True)

    def forward(self, x):
        if self.fails == "behind":
            x = x.clone().requires_grad_()
            x.register_hook(fail)
            x = x * 1
        output = self.layer(x)
        if self.fails == "amid":
            output.register_hook(fail)
        return output + x * self.table(torch.ones(1, dtype=torch.long, device=x.device))


def fail_beside_rows(ctx, where):
    """Gradients of a layer and of a table's one row, until the program is refused what comes after an error.

    And what the last backward of all has sent beside the last before the error.
    """
    model, told, sent = ddp(ctx, Behind().to(ctx.device)), [], []

    def train():
        for iteration in range(5):
            model.module.fails = where if iteration == 2 else ""
            model.zero_grad()
            loss = model(mine(ctx)).sum()
            if iteration == 2:
                assert caught(loss.backward) is not None
                continue
            sent.append([(event.op, event.dtype, event.shape) for event in started(ctx, loss.backward)])
            told.append([whole(each.grad).to_dense().flatten().tolist() for each in model.module.parameters()])

    error = caught(train)
    ctx.meet("told")
    return error, told, (sent[-1], sent[1])


@check("DDP-057", worlds=MANY, beyond=False)
def test_rows_of_a_backward_that_failed_are_never_sent(ranks):
    goes_on_behind_rows(ranks, "amid")


@check("DDP-057", worlds=MANY, beyond=False)
def test_rows_that_were_sent_before_a_backward_failed_are_nobodys(ranks):
    goes_on_behind_rows(ranks, "behind")


def goes_on_behind_rows(ranks, where):
    mean = mean_of_all(ranks.world)
    for rank, (error, told, (last, before)) in enumerate(ranks(fail_beside_rows, where, trace=True)):
        assert last == before, f"rank {rank}"
        if error is not None:
            assert error.is_a(RuntimeError), f"rank {rank}: {error}"
            ranks.at_limit("after a backward that failed, the next forward is refused")
        assert told == [[[mean], [0.0, mean, 0.0, 0.0]]] * (4 if error is None else 2), f"rank {rank}"


class Amid(nn.Module):
    """A sparse table whose gradient comes between those of two layers; backward may fail before it or behind it."""

    fails = ""

    def __init__(self):
        super().__init__()
        self.first, self.table, self.last = models.scalar(), nn.Embedding(4, 1, sparse=True), models.scalar()
        nn.init.ones_(self.table.weight)

    def forward(self, x):
        first = self.first(x)
        both = first * self.table(torch.zeros(1, dtype=torch.long, device=x.device))
        if self.fails:
            (both if self.fails == "before" else first).register_hook(fail)
        return self.last(both)


def fail_before_and_behind_rows(ctx):
    """Once backward fails on all ranks, on some of them before the table's gradient and on others behind it."""
    model, told = ddp(ctx, Amid().to(ctx.device), bucket_cap_mb=1e-6), []

    def train():
        for iteration in range(6):
            model.module.fails = ("before", "behind")[ctx.rank % 2] if iteration == 3 else ""
            model.zero_grad()
            loss = model(mine(ctx)).sum()
            if iteration == 3:
                assert caught(loss.backward) is not None
                continue
            loss.backward()
            told.append([whole(each.grad).to_dense().flatten().tolist() for each in model.module.parameters()])

    error = caught(train)
    ctx.meet("told")
    return error, told


@check("DDP-057", worlds=MANY, beyond=False)
def test_rows_that_some_ranks_have_not_sent_when_all_failed_are_nobodys(ranks):
    mean = mean_of_all(ranks.world)
    for rank, (error, told) in enumerate(ranks(fail_before_and_behind_rows)):
        if error is not None:
            assert error.is_a(RuntimeError), f"rank {rank}: {error}"
            ranks.at_limit("after a backward that failed, the next forward is refused")
        assert told == [[[mean], [mean, 0.0, 0.0, 0.0], [mean]]] * (5 if error is None else 3), f"rank {rank}"


# -- a backward that failed on one rank after all of it was sent


class Rows(nn.Module):
    """A layer and a sparse table, of which a forward uses so many rows."""

    def __init__(self):
        super().__init__()
        self.layer, self.table = models.scalar(), nn.Embedding(6, 1, sparse=True)

    def forward(self, x, count):
        return self.layer(x) + x * self.table(torch.arange(count, device=x.device)).sum()


FAILS = 2  # the iteration in which the last rank does
AT_ITS_END = "a backward sends its gradients at its end, so that one that fails sends none"


def sends_at_its_end(ctx):
    """Whether a backward that fails behind all parameters has sent fewer gradients than one that does not.

    All ranks fail here. Were it one alone, the others would wait for what it never sends.
    """
    model, sent = ddp(ctx, Rows().to(ctx.device)), []
    for iteration in range(FAILS + 1):
        model.zero_grad()
        entering = 1 * mine(ctx).requires_grad_()
        loss = model(entering, 1).sum()
        if iteration == FAILS:
            entering.register_hook(fail)
        errors = []
        events = started(ctx, lambda: errors.append(caught(loss.backward)))  # noqa: B023
        assert (errors[0] is not None) == (iteration == FAILS), errors[0]
        sent.append(sum(event.dtype.startswith("float") for event in events))
    return sent[FAILS] < sent[FAILS - 1]


def fail_behind_all_rows(ctx, counts, then=None):
    """Gradients by iteration, with so many rows in each; None where the last rank's backward failed behind them all.

    ``then``: what all ranks do after that one. Fewer gradients, if the last rank is refused the next forward.
    """
    model, told, last = ddp(ctx, Rows().to(ctx.device)), [], ctx.world - 1
    for iteration, count in enumerate(counts):
        model.zero_grad()
        entering = 1 * mine(ctx).requires_grad_()
        outputs = []
        refused = caught(lambda: outputs.append(model(entering, count)))  # noqa: B023
        if iteration == FAILS + 1:
            if ctx.rank == last:
                ctx.store.set(f"refused {counts} {then}", str(refused is not None))
            if ctx.store.get(f"refused {counts} {then}") == b"True":
                return told
        assert refused is None, refused
        if iteration == FAILS and ctx.rank == last:
            entering.register_hook(fail)  # in a backward it comes after all parameters
            assert caught(outputs[0].sum().backward) is not None
            told.append(None)
        else:
            outputs[0].sum().backward()
            told.append([whole(each.grad).to_dense().flatten().tolist() for each in model.module.parameters()])
        if iteration == FAILS and then is not None:
            AFTERWARDS[then](ctx, model)
    return told


def fail_behind_all_rows_in_each_way(ctx, ways):
    if sends_at_its_end(ctx):
        return None
    return [fail_behind_all_rows(ctx, counts) for counts in ways]


@check("DDP-057", worlds=MANY, beyond=False)
def test_after_a_backward_that_failed_on_one_rank_behind_all_rows_they_are_averaged_as_before(ranks):
    ways, mean = [(1, 1, 5, 5, 3), (5, 5, 1, 1, 3), (3, 3, 2, 3, 3)], mean_of_all(ranks.world)
    expected = [[[[mean], [mean] * count + [0.0] * (6 - count)] for count in counts] for counts in ways]
    runs = ranks(fail_behind_all_rows_in_each_way, ways, trace=True)
    if runs == [None] * ranks.world:
        ranks.at_limit(AT_ITS_END)
        return
    for rank, told in enumerate(runs):
        for counts, seen, right in zip(ways, told, expected, strict=True):
            if rank == ranks.world - 1:
                right[FAILS] = None
            if len(seen) == FAILS + 1:
                ranks.at_limit("after a backward that failed, the next forward is refused")
            assert seen == right[: len(seen)], f"rank {rank}, {counts}"


def evaluate_another(ctx, _model):
    with torch.no_grad():
        ddp(ctx, models.Counting(1.0))(mine(ctx))


def train_another(ctx, _model):
    model = ddp(ctx, models.scalar().to(ctx.device))
    model(mine(ctx)).sum().backward()


IN_PLACE = "gradients cleared in place"
AFTERWARDS = {
    "an evaluation": evaluate_another,
    "another model": train_another,
    "a sum of the program's own": lambda ctx, _: dist.all_reduce(mine(ctx)),
    IN_PLACE: lambda _, model: model.zero_grad(set_to_none=False),
    "casts": lambda _, model: model.double().float(),
}


def go_on_behind_all_rows(ctx, counts, ways):
    if sends_at_its_end(ctx):
        return None
    return {then: fail_behind_all_rows(ctx, counts, then) for then in ways}


@check("DDP-057", worlds=MANY, beyond=False)
def test_what_a_program_does_after_a_backward_that_failed_on_one_rank_leaves_the_rows_of_the_others_alone(ranks):
    others_have_their_rows(ranks, [way for way in AFTERWARDS if way != IN_PLACE])


@check("DDP-057", worlds=MANY, beyond=False)
def test_gradients_cleared_in_place_behind_a_backward_that_failed_are_not_those_that_travel(ranks):
    assert ranks.subject.PeerFailed  # torch sends them from where they lie, so that who clears first decides
    others_have_their_rows(ranks, [IN_PLACE])


def others_have_their_rows(ranks, ways):
    counts, mean = (1, 1, 5, 3), mean_of_all(ranks.world)
    runs = ranks(go_on_behind_all_rows, counts, ways, trace=True)
    if runs == [None] * ranks.world:
        ranks.at_limit(AT_ITS_END)
        return
    for rank, told in enumerate(runs):
        for then, seen in told.items():
            right = [[[mean], [mean] * count + [0.0] * (6 - count)] for count in counts]
            if rank == ranks.world - 1:
                right[FAILS] = None
            if len(seen) == FAILS + 1:
                ranks.at_limit("after a backward that failed, the next forward is refused")
            assert seen == right[: len(seen)], f"rank {rank}, {then}"


# -- DDP-057: a table, and another model behind it


class InFront(nn.Module):
    """A layer and a sparse table, whose outputs are added."""

    def __init__(self):
        super().__init__()
        self.layer, self.table = nn.Linear(4, 4, bias=False), nn.Embedding(4, 4, sparse=True)

    def forward(self, x, rows):
        return self.layer(x) + self.table(rows)


def train_in_front_of_another(ctx):
    first, second = ddp(ctx, InFront()), nn.Linear(4, 4, bias=False)
    nn.init.constant_(second.weight, 0.25)
    second = ddp(ctx, second)
    seen = []
    for iteration in range(3):
        first.zero_grad(set_to_none=True)
        x = torch.full((1, 4), mine(ctx, iteration + 1).item(), device=ctx.device)
        (12 * second(first(x, torch.tensor([ctx.rank], device=ctx.device)))).sum().backward()
        seen.append((first.module.layer.weight.grad.tolist(), first.module.table.weight.grad.to_dense().tolist()))
    return seen


@check("DDP-057", worlds=MANY, beyond=False)
def test_a_table_in_front_of_another_model_leaves_the_gradients_of_its_neighbours_right(ranks):
    world = ranks.world
    rows = [[12 / world if row < world else 0.0] * 4 for row in range(4)]
    for rank, seen in enumerate(ranks(train_in_front_of_another)):
        for iteration, (layer, table) in enumerate(seen):
            assert layer == [[12 * mean_of_all(world, iteration + 1)] * 4] * 4, f"rank {rank}, iteration {iteration}"
            assert table == rows, f"rank {rank}, iteration {iteration}"


# -- DDP-057: a table that no module says to be sparse


class Looking(nn.Module):
    """Looks rows up by itself, and asks for a sparse gradient of them, beside a layer."""

    def __init__(self):
        super().__init__()
        self.rows, self.layer = nn.Parameter(torch.ones(4, 2)), nn.Linear(2, 2)

    def forward(self, rows):
        return self.layer(nn.functional.embedding(rows, self.rows, sparse=True))


def look_up_by_itself(ctx):
    model = ddp(ctx, Looking())
    error = caught(lambda: model(torch.tensor([ctx.rank], device=ctx.device)).sum().backward())
    ctx.meet("told")
    return error, None if error else model.module.rows.grad.to_dense()[:, 0].count_nonzero().item()


@check("DDP-057", worlds=(2, 3), beyond=False)
def test_rows_that_nobody_knew_to_be_sparse_are_averaged_or_refused(ranks):
    for error, rows in ranks(look_up_by_itself):
        if error is None:
            assert rows == ranks.world
        else:
            assert error.is_a(RuntimeError)
            assert "sparse" in error.text.lower(), error.text
            ranks.at_limit("a sparse gradient that no module announces is refused")
            if not re.search(r"\bindex 0\b|\brows\b", error.text):
                ranks.at_limit("and the error does not say which")
