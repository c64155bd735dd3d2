"""What ranks tell each other arrives with every bit, be it an integer, a double or complex; in few messages."""

import torch
from torch import nn

from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.observing import mean_of_all, mine, started, trained, wrapped
from conformance.fixtures.training import private, whole

# -- DDP-025, DDP-087: numbers that a detour through another dtype would change

FINE = 2.0**-40  # lost where 1 + FINE is kept in float32
WIDE = {  # a value of each kind by rank: rank 0's is what everybody is to have
    "float64": lambda rank: torch.tensor([1 + FINE * (rank + 1), 2.0**1000], dtype=torch.float64),
    "float32": lambda rank: torch.tensor([1 + 2.0**-23 * (rank + 1), 2.0**-126]),
    "float16": lambda rank: torch.tensor([1 + 2.0**-10 * (rank + 1)], dtype=torch.float16),
    "bfloat16": lambda rank: torch.tensor([1 + 2.0**-7 * (rank + 1), 2.0**100], dtype=torch.bfloat16),
    "int64": lambda rank: torch.tensor([2**53 + 1 + 2 * rank, 2**24 + 1 + rank, -(2**63) + rank]),
    "int32": lambda rank: torch.tensor([2**24 + 1 + 2 * rank, -(2**31) + rank], dtype=torch.int32),
    "uint8": lambda rank: torch.tensor([255 - rank, 128 + rank], dtype=torch.uint8),
    "int8": lambda rank: torch.tensor([-128 + rank], dtype=torch.int8),
    "bool": lambda rank: torch.tensor([rank == 0, rank > 0, rank == 0]),
    "complex64": lambda rank: torch.tensor([complex(rank + 1, 7 - rank)]),
    "complex128": lambda rank: torch.tensor([complex(rank, 1 + FINE * (rank + 1))], dtype=torch.complex128),
}


class Wide(nn.Module):
    """A buffer of each kind, a double and a complex parameter, beside a scalar layer."""

    def __init__(self, rank):
        super().__init__()
        self.a = models.scalar()
        self.precise = nn.Parameter(WIDE["float64"](rank))
        self.turning = nn.Parameter(WIDE["complex128"](rank), requires_grad=False)
        for name, make in WIDE.items():
            self.register_buffer(f"of_{name}", make(rank))
        self.seen = []

    def forward(self, x):
        self.seen.append(values(self))
        return self.a(x) + 0 * self.precise[0].to(x.dtype)


def values(module):
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return {name: whole(tensor).tolist() for name, tensor in tensors if name != "a.weight"}


def take_over(ctx):
    model = wrapped(ctx, Wide(ctx.rank))
    at_start = values(model.module)
    for name, make in WIDE.items():
        model.module.get_buffer(f"of_{name}").copy_(make(ctx.rank))
    trained(model, mine(ctx))
    return at_start, model.module.seen[0]


@check("DDP-025", "DDP-087", worlds=MANY)
def test_numbers_of_every_kind_arrive_with_every_bit(ranks):
    expected = values(Wide(0))
    for rank, (at_start, in_forward) in enumerate(ranks(take_over)):
        assert at_start == expected, f"rank {rank} after construction"
        assert in_forward == expected, f"rank {rank} in its forward"


MARKED = {  # complex numbers that are shown otherwise than they lie in memory
    "conjugate": lambda numbers: numbers.conj(),
    "negative": lambda numbers: numbers.conj().imag,
}


class Marked(nn.Module):
    """A frozen parameter and a buffer that torch has marked, beside a scalar layer."""

    def __init__(self, rank, mark):
        super().__init__()
        self.a = models.scalar()
        self.frozen = nn.Parameter(mark(WIDE["complex64"](rank)), requires_grad=False)
        self.register_buffer("turning", mark(WIDE["complex64"](rank)))
        self.seen = []

    def forward(self, x):
        self.seen.append(values(self))
        self.turning += self.frozen
        return self.a(x)


def take_over_marked(ctx, mark):
    model = wrapped(ctx, Marked(ctx.rank, MARKED[mark]))
    at_start = values(model.module)
    for _ in range(2):
        trained(model, mine(ctx))
        model.module.turning.mul_(2 + ctx.rank)
    return at_start, model.module.seen


@check("DDP-087", worlds=MANY, beyond=False)
def test_marked_numbers_follow_rank_0(ranks):
    for name, results in ranks.each(take_over_marked, MARKED):
        alone = Marked(0, MARKED[name])
        at_start = values(alone)
        for _ in range(2):
            alone(torch.ones(1, 1))
            alone.turning.mul_(2)
        for rank, told in enumerate(results):
            assert told == (at_start, alone.seen), f"rank {rank}, {name}"


class Expanded(nn.Module):
    """Buffers that show a number in many places, along one dimension or along several."""

    SHAPES = (((1, 1), (3, 4)), ((3, 1), (3, 4)), ((1, 4), (3, 4)), ((1, 2, 1), (5, 2, 3)), ((), (2, 2)))

    def __init__(self, rank):
        super().__init__()
        self.a = models.scalar()
        for place, (shape, shown) in enumerate(self.SHAPES):
            self.register_buffer(f"mask{place}", (models.integers(*shape, seed=place) + 10 * rank).expand(shown))
        self.seen = []

    def forward(self, x):
        self.seen.append(values(self))
        return self.a(x)


def take_over_expanded(ctx):
    """What the buffers are after construction and in a forward, or the class of the error that refuses them."""
    try:
        model = wrapped(ctx, Expanded(ctx.rank))
        at_start = values(model.module)
        for name, own in Expanded(ctx.rank).named_buffers():
            model.module.get_buffer(name).data = own
        trained(model, mine(ctx))
    except RuntimeError as error:
        return type(error).__name__
    return at_start, model.module.seen[0]


@check("DDP-025", worlds=MANY)
def test_buffers_that_show_one_number_in_many_places_follow_rank_0(ranks):
    expected = values(Expanded(0))
    told = ranks(take_over_expanded)
    if told == ["RuntimeError"] * ranks.world:
        ranks.at_limit("a model with an expanded buffer is refused")
        return
    for rank, (at_start, in_forward) in enumerate(told):
        assert at_start == expected, f"rank {rank} after construction"
        assert in_forward == expected, f"rank {rank} in its forward"


# -- DDP-052, DDP-049: gradients of complex numbers


class Complex(nn.Module):
    """Two complex parameters of each precision; the gradient of an element is its factor times the input.

    The last two are used conjugated, of which autograd makes gradients that are marked as conjugates.
    """

    KINDS = (torch.complex64, torch.complex128)

    def __init__(self):
        super().__init__()
        self.a = models.scalar()
        self.each = nn.ParameterList([nn.Parameter(torch.ones(3, dtype=kind)) for kind in self.KINDS * 2])

    def forward(self, x):
        ramp = torch.arange(1.0, 4.0, device=x.device)
        plain, turned = self.each[:2], self.each[2:]
        parts = [(x.sum() * ramp * (each.real + 2 * each.imag)).sum() for each in plain]
        parts += [(each.conj() * (x.sum() * ramp * (1 + 2j)).to(each.dtype)).real.sum() for each in turned]
        return self.a(x).sum() + torch.stack([part.double() for part in parts]).sum().to(x.dtype)


def average_complex_numbers(ctx):
    told = []
    for options in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 1e-5}):
        model = wrapped(ctx, Complex(), **options)
        for times in (1, 2):
            model.zero_grad()
            model(mine(ctx, times)).sum().backward()
            told.append([(str(each.grad.dtype), whole(each.grad).tolist()) for each in model.module.each])
    return told


@check("DDP-052", worlds=MANY, beyond=False)
def test_gradients_of_complex_parameters_are_averaged_in_both_parts(ranks):
    expected = []
    for times in (1, 2):
        mean = mean_of_all(ranks.world, times)
        row = [complex(factor * mean, 2 * factor * mean) for factor in (1, 2, 3)]
        expected.append([(str(kind), row) for kind in Complex.KINDS * 2])
    assert ranks(average_complex_numbers) == [expected * 3] * ranks.world


class Turned(nn.Module):
    """Imaginary parts of numbers that are used conjugated: autograd marks gradients of single ones as negative."""

    def __init__(self):
        super().__init__()
        self.each = nn.ParameterList([nn.Parameter(torch.ones(shape)) for shape in ((1,), (), (3,))])

    def forward(self, x):
        return x * sum((2 * torch.complex(torch.zeros_like(each), each).conj()).imag.sum() for each in self.each)


def average_what_is_negated(ctx):
    told = []
    for options in ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}):
        model = wrapped(ctx, Turned(), **options)
        for times in (1, 2):
            model.zero_grad()
            model(mine(ctx, times)).sum().backward()
            told.append([whole(each.grad).flatten().tolist() for each in model.module.each])
    return told


@check("DDP-049", worlds=MANY, beyond=False)
def test_gradients_that_autograd_has_marked_as_negative_are_averaged(ranks):
    rows = [[[-2 * mean_of_all(ranks.world, times)] * numel for numel in (1, 1, 3)] for times in (1, 2)]
    assert ranks(average_what_is_negated) == [rows * 3] * ranks.world


# -- DDP-005: how many messages that takes

CHUNK_BYTES = 64
SINGLES, DOUBLES = 24, 12  # buffers of four elements each: 384 bytes of either kind


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = models.scalar()
        for kind, count in ((torch.float32, SINGLES), (torch.float64, DOUBLES)):
            for place in range(count):
                self.register_buffer(f"b{str(kind)[-2:]}_{place}", torch.zeros(4, dtype=kind))

    def forward(self, x):
        return self.a(x)


def bytes_sent(events):
    broadcasts = [event for event in events if event.op == "broadcast"]
    return [torch.Size(event.shape).numel() * getattr(torch, event.dtype).itemsize for event in broadcasts]


def count_messages(ctx):
    model = wrapped(ctx, Small())
    default = private(model, "broadcast_bucket_size")
    told = []
    for chunk_bytes in (default, CHUNK_BYTES):
        model.broadcast_bucket_size = chunk_bytes
        for _ in range(3):  # the second may agree on buckets, too
            outputs = []
            sent = bytes_sent(started(ctx, lambda outputs=outputs: outputs.append(model(mine(ctx)))))
            outputs[0].sum().backward()
        told.append(sent)
    return default, told


@check("DDP-005", worlds=(2, 3))
def test_small_buffers_travel_together_up_to_the_size_of_a_chunk(ranks):
    whole = 4 * 4 * SINGLES + 4 * 8 * DOUBLES
    for default, (together, in_chunks) in ranks(count_messages, trace=True):
        assert default == 250 * 1024 * 1024
        assert sum(together) == sum(in_chunks) == whole
        assert len(together) <= 2, f"everything fits into one chunk, or one for each kind: {together}"
        assert max(in_chunks) <= CHUNK_BYTES + 32, f"a chunk with room for more: {in_chunks}"
        assert len(in_chunks) <= whole / CHUNK_BYTES + 2, f"more messages than chunks: {in_chunks}"


# -- DDP-047: evaluations that need nobody, whatever the mode


def buffers_that_stay(ctx, how):
    """A model of whose buffers none is to be synchronised."""
    module = models.Counting(1.0)
    if how == "ignored":
        private(ctx.subject.DistributedDataParallel, "_set_params_and_buffers_to_ignore_for_model")(module, ["count"])
    return module


WAYS = {
    "no buffers": {},
    "a search": {"find_unused_parameters": True},
    "a static graph": {"static_graph": True},
    "views": {"gradient_as_bucket_view": True},
    "switched off": {"broadcast_buffers": False},
    "ignored": {},
}


def evaluate_alone_in_every_mode(ctx):
    """Rank 0 alone runs forwards without gradients, in training mode too, before, between and after iterations."""
    alone, found = {}, {}
    for how, options in WAYS.items():
        module = buffers_that_stay(ctx, how) if how in ("switched off", "ignored") else models.scalar()
        model = wrapped(ctx, module, **options)

        def evaluate(model=model):
            for training in (True, False):
                model.train(training)
                for mode in (torch.no_grad, torch.inference_mode):
                    with mode():
                        model(mine(ctx, 5)), model(mine(ctx, 6))
            model.train()

        alone[how], found[how] = 0, []
        for times in (1, 2, 3):
            if ctx.rank == 0:
                alone[how] += len(started(ctx, evaluate))
            found[how] += trained(model, mine(ctx, times)).values()
    return alone, found


@check("DDP-047", worlds=MANY, deadline_s=6, beyond=False)
def test_without_buffers_to_synchronise_one_rank_may_run_forwards_without_gradients_in_any_mode(ranks):
    expected = [[mean_of_all(ranks.world, times)] for times in (1, 2, 3)]
    for rank, (alone, found) in enumerate(ranks(evaluate_alone_in_every_mode, trace=True)):
        assert alone == dict.fromkeys(WAYS, 0), f"rank {rank}: collectives of its forwards without gradients"
        assert found == dict.fromkeys(WAYS, expected), f"rank {rank}"
