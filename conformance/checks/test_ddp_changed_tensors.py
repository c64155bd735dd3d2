"""What a loop does to parameters and gradients between iterations: loads, other memory, other strides, a freeze."""

import torch
import torch.distributed as dist
from torch import nn

from conformance.api import oracle
from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.comm_hooks import done
from conformance.fixtures.observing import TINY_MIB, missing_of, trained, wrapped
from conformance.fixtures.training import gradient, gradients, numbers, private, scalar_means
from conformance.ranks import caught

WAYS = {
    "copies": {},
    "views": {"gradient_as_bucket_view": True},
    "views of several buckets": {"gradient_as_bucket_view": True, "bucket_cap_mb": TINY_MIB / 2},  # one for each part
    "views and a search": {"gradient_as_bucket_view": True, "find_unused_parameters": True},
    "views and a static graph": {"gradient_as_bucket_view": True, "static_graph": True},
}
REFUSED = "Expected to have finished reduction"  # torch's words for a backward that it takes for an unfinished one
HOOKED = "copies of what a hook answers elsewhere"


def average_elsewhere(_state, bucket):
    """The average of a bucket, in memory of its own."""
    flat = bucket.buffer().clone()
    dist.all_reduce(flat)
    return done(flat / dist.get_world_size())


def two_parts():
    """Two parts, whose gradients differ by a factor."""
    made = models.Parts("ab")
    made.shape = lambda outputs: outputs["a"] + 2 * outputs["b"]
    return made


def averages_of_two_parts(world, iterations):
    """By iteration, what one process averages of the ranks' ``data``."""
    batches = [[data(rank, iteration) for rank in range(world)] for iteration in range(iterations)]
    return [numbers(oracle.averaged_gradients(two_parts(), each, world).items()) for each in batches]


def turned(tensor):
    """The same numbers, laid out column by column."""
    return tensor.t().contiguous().t() if tensor.dim() == 2 else tensor.clone()


def load(model):
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})


def each(act):
    """Do something to every parameter."""

    def change(model):
        for parameter in model.parameters():
            act(parameter)

    return change


def renew(parameter):
    parameter.data = parameter.data.clone()


def renew_turned(parameter):
    parameter.data = turned(parameter.data)


def renew_gradient(parameter):
    parameter.grad = torch.full_like(parameter, 5.0)


def renew_gradient_turned(parameter):
    parameter.grad = turned(torch.full_like(parameter, 5.0))


def move_gradient(parameter):
    parameter.grad.data = parameter.grad.data.clone()


def move_every_second(first):
    """The gradient of every second parameter moves, the others stay in their bucket."""

    def change(model):
        for parameter in list(model.parameters())[first::2]:
            move_gradient(parameter)

    return change


def swap_gradients(model):
    """The two parts hand each other their gradients, wherever those lie."""
    one, other = (part.parameters() for part in model.module.parts.values())
    for mine, theirs in zip(one, other, strict=True):
        mine.grad, theirs.grad = theirs.grad, mine.grad


def lay_out_anew(parameter):
    """What ``Module.to`` does to a parameter and its gradient."""
    parameter.data = turned(parameter.data)
    parameter.grad.data = turned(parameter.grad.data)


def renew_every_second(model):
    """Some gradients lie where they were, others in memory of the loop's own and column by column."""
    for place, parameter in enumerate(model.parameters()):
        if place % 4 == 0 or parameter.grad is None:
            renew_gradient_turned(parameter)


def share_gradient_memory(model):
    """Gradients in one tensor of the loop's own, as those who clip or log them by a single call do."""
    whole = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
    at = 0
    for parameter in model.parameters():
        parameter.grad = whole[at : at + parameter.numel()].view_as(parameter)
        at += parameter.numel()


def freeze_and_thaw(parameter):
    parameter.requires_grad_(False).requires_grad_(True)


CHANGES = {
    "nothing": lambda model: None,
    "loaded": load,
    "in new memory": each(renew),
    "new gradients": each(renew_gradient),
    "new gradients, turned": each(renew_gradient_turned),
    "some new gradients, turned": renew_every_second,
    "gradients in one tensor": share_gradient_memory,
    "frozen and thawed": each(freeze_and_thaw),
}


def data(rank, iteration):
    """Gradients whose average can be averaged once more among 3 ranks."""
    return 3 * models.divisible(rank, iteration)


TURNED = {"in new memory, turned": each(renew_turned), "and loaded": load}
MOVED = {
    "nothing": CHANGES["nothing"],
    "gradients moved": each(move_gradient),
    "gradients, too": each(lay_out_anew),
    "every second of the gradients": move_every_second(0),
    "the other gradients": move_every_second(1),
    "gradients of each other": swap_gradients,
}
SETS = {"usual": CHANGES, "turned": TURNED, "moved": MOVED}


def change_between_iterations(ctx, chosen):
    """By way and change: the gradients of an iteration from zero, and of one that adds to it."""
    told = {}
    for way in (*WAYS, HOOKED):
        model = wrapped(ctx, two_parts(), **WAYS.get(way, {}))
        if way == HOOKED:
            model.register_comm_hook(None, average_elsewhere)
        for number, (name, change) in enumerate(SETS[chosen].items()):
            change(model)
            model.zero_grad(set_to_none=number % 2 == 1 and "gradients" not in name)
            seen = []
            for iteration in (2 * number, 2 * number + 1):
                model(data(ctx.rank, iteration).to(ctx.device)).sum().backward()
                seen.append(gradients(model))
            pieces = {parameter.grad.untyped_storage().data_ptr() for parameter in model.parameters()}
            told[way, name] = seen, len(pieces)
    return told


def assert_averages(ranks, chosen):
    world, module = ranks.world, two_parts()
    expected = {}
    for number, name in enumerate(SETS[chosen]):
        found = [
            oracle.averaged_gradients(module, [data(rank, iteration) for rank in range(world)], world)
            for iteration in (2 * number, 2 * number + 1)
        ]
        both = {key: found[0][key] + found[1][key] for key in found[0]}
        expected[name] = [numbers(found[0].items()), numbers(both.items())]
    for rank, mine in enumerate(ranks(change_between_iterations, chosen)):
        for (way, name), (seen, pieces) in mine.items():
            assert seen == expected[name], f"rank {rank}: {way}, {name}"
            if way in ("views", "views and a search"):
                assert pieces == 1, f"rank {rank}: {way}, {name}: gradients are no views of the bucket any more"


@check("DDP-117", "DDP-049", "DDP-059", worlds=MANY, beyond=False)
def test_whatever_is_done_to_parameters_and_gradients_in_between_the_next_ones_are_averages(ranks):
    assert_averages(ranks, "usual")


@check("DDP-049", worlds=MANY, beyond=False)
def test_parameters_that_are_laid_out_anew_go_on_with_averages(ranks):
    assert_averages(ranks, "turned")


@check("DDP-117", worlds=MANY, beyond=False)
def test_gradients_that_the_program_moves_are_averaged_as_before(ranks):
    assert_averages(ranks, "moved")


class Matrices(nn.Module):
    """Two matrices, of which each element has a gradient of its own; the second is used where that is asked for."""

    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.arange(6.0).view(2, 3)) for _ in range(2))

    def forward(self, x, both):
        ramp = torch.arange(1.0, 7.0, device=x.device).view(2, 3)
        return x * sum((each * ramp).sum() for each in ((self.a, self.b) if both else (self.a,)))


def fail(_gradient):
    raise ValueError("a backward that fails")


def step_after_a_turn(ctx, options, delays, fails):
    """The weights after three fused steps, the second of which meets parameters that lie column by column.

    ``fails``: before they come to lie so a backward fails.
    """
    module = Matrices().to(ctx.device)
    late = {"delay_all_reduce_named_params": [("b", module.b)], "param_to_hook_all_reduce": module.a} if delays else {}
    model = wrapped(ctx, module, **options, **late)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, fused=True)

    def train():
        for iteration in range(3):
            data = models.divisible_scalar(ctx.rank, iteration).to(ctx.device)
            if iteration == 1:
                if fails:
                    failing = module.a.register_hook(fail)
                    caught(model(data, True).sum().backward)
                    failing.remove()
                each(renew_turned)(model)
            optimizer.zero_grad()
            model(data, delays or ctx.rank == iteration % ctx.world).sum().backward()
            optimizer.step()

    return caught(train), numbers(module.named_parameters())


@check("DDP-049", worlds=MANY, beyond=False, scenarios={
    "copies": ({"find_unused_parameters": True}, False, False),
    "views": ({"find_unused_parameters": True, "gradient_as_bucket_view": True}, False, False),
    "views, behind a failure": ({"find_unused_parameters": True, "gradient_as_bucket_view": True}, False, True),
    "delayed": ({}, True, False),
})  # fmt: skip
def test_a_fused_optimizer_of_a_model_that_is_laid_out_anew_steps_as_in_one_process(ranks, scenario):
    (options, delays, fails), world, alone = scenario, ranks.world, Matrices()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.5)
    for iteration in range(3):
        optimizer.zero_grad()
        for rank in range(world):
            data = models.divisible_scalar(rank, iteration)
            (alone(data, delays or rank == iteration % world).sum() / world).backward()
        optimizer.step()
    for rank, (error, weights) in enumerate(ranks(step_after_a_turn, options, delays, fails)):
        if fails and error is not None and REFUSED in error.text:
            ranks.at_limit("after a backward that failed, the next forward is refused")
            return
        assert error is None, f"rank {rank}: {error}"
        assert weights == numbers(alone.named_parameters()), f"rank {rank}"


def freeze_for_a_while(ctx):
    """One of two parts is frozen for two iterations, in which it may keep a gradient, and thawed again."""
    told = {}
    for as_view in (False, True):
        for cap in (None, TINY_MIB):
            model = wrapped(
                ctx, models.Parts("ab"), find_unused_parameters=True, gradient_as_bucket_view=as_view, bucket_cap_mb=cap
            )
            seen = []
            for iteration in range(6):
                model.module.parts["b"].requires_grad_(iteration not in (2, 3))
                for parameter in model.module.parts["a"].parameters():
                    parameter.grad = None
                if iteration in (0, 1, 5):
                    model.zero_grad(set_to_none=iteration != 1)
                model(data(ctx.rank, iteration).to(ctx.device)).sum().backward()
                seen.append(gradients(model))
            told[as_view, cap] = seen
    return told


@check("DDP-100", "DDP-117", worlds=MANY, beyond=False)
def test_what_is_frozen_for_a_while_keeps_its_gradient_and_goes_on_from_it(ranks):
    world, module = ranks.world, models.Parts("ab")
    means = [
        oracle.averaged_gradients(module, [data(rank, iteration) for rank in range(world)], world)
        for iteration in range(6)
    ]
    of_b = [means[0], means[1], means[1], means[1], None, means[5]]
    expected = []
    for iteration, mean in enumerate(means):
        b = of_b[iteration] or {name: means[1][name] + mean[name] for name in mean}
        expected.append(numbers((name, (b if ".b." in name else mean)[name]) for name in mean))
    for rank, told in enumerate(ranks(freeze_for_a_while)):
        for way, seen in told.items():
            for iteration, found in enumerate(seen):
                assert found == expected[iteration], f"rank {rank}, iteration {iteration}, {way}"


class Written(nn.Module):
    """Writes what one layer makes of a constant into the frozen weight of another, in each forward."""

    def __init__(self):
        super().__init__()
        self.maker, self.made = models.scalar(), models.scalar()
        self.made.weight.requires_grad_(False)

    def forward(self, x):
        self.made.weight.detach_()
        self.made.weight.copy_(self.maker(torch.ones_like(self.made.weight)))
        return self.made(x)


def write_into_what_is_frozen(ctx):
    """The gradients of the layer that is trained; after two iterations a module is put into the model."""
    told = {}
    for way in ("copies", "views of several buckets", "views and a search", "views and a static graph"):
        model, seen = wrapped(ctx, Written(), **WAYS[way]), []
        for iteration in range(4):
            model.module.maker.zero_grad()
            model(models.divisible_scalar(ctx.rank, iteration).to(ctx.device)).sum().backward()
            seen.append(gradient(model.module.maker.weight))
            if iteration == 1:
                model.module.beside = nn.Identity()
        told[way] = seen
    return told


@check("DDP-058", "DDP-049", worlds=MANY, beyond=False)
def test_what_a_forward_writes_into_a_frozen_parameter_is_not_trained_for_that(ranks):
    means = scalar_means((4,) * ranks.world)
    for rank, told in enumerate(ranks(write_into_what_is_frozen)):
        for way, seen in told.items():
            assert seen == means, f"rank {rank}, {way}"


def give_sparse_gradients(ctx):
    """The gradients of an iteration that adds to sparse ones, which the program has put there, and of the next."""
    told = {}
    for way in ("copies", "views"):
        model, seen = wrapped(ctx, two_parts(), **WAYS[way]), []
        for iteration in range(4):
            model.zero_grad()
            if iteration == 2:
                for parameter in model.parameters():
                    parameter.grad = torch.full_like(parameter, 3.0).to_sparse()
            model(data(ctx.rank, iteration).to(ctx.device)).sum().backward()
            seen.append(gradients(model))
        told[way] = seen
    return told


@check("DDP-117", "DDP-059", worlds=MANY, beyond=False)
def test_sparse_gradients_that_a_program_has_put_there_are_added_to(ranks):
    expected = []
    for iteration in range(4):
        batches = [data(rank, iteration) for rank in range(ranks.world)]
        means = oracle.averaged_gradients(two_parts(), batches, ranks.world)
        expected.append(numbers((name, mean + 3.0 * (iteration == 2)) for name, mean in means.items()))
    for rank, told in enumerate(ranks(give_sparse_gradients)):
        for way, seen in told.items():
            assert seen == expected, f"rank {rank}, {way}"


FROZEN = {"a": 2, "c": 3}  # parts, and for how many iterations


def thaw(ctx):
    """Of three parts, two are frozen when the model is wrapped, and thawed one after the other; or the error."""
    told = {}

    def use():
        for way in ("copies", "views of several buckets", "views and a search", "no buckets"):
            module = models.Parts("abc")
            for part in FROZEN:
                module.parts[part].requires_grad_(False)
            model, told[way] = wrapped(ctx, module, **WAYS.get(way, {})), []
            if way == "no buckets":
                private(model, "_register_accum_grad_hook")()
            for iteration in range(5):
                for part, iterations in FROZEN.items():
                    module.parts[part].requires_grad_(iteration >= iterations)
                model.zero_grad()
                model(data(ctx.rank, iteration).to(ctx.device)).sum().backward()
                told[way].append(gradients(model))

    return caught(use), told


@check("DDP-049", worlds=MANY, beyond=False)
def test_what_was_frozen_when_the_model_was_wrapped_is_averaged_once_it_is_trained_or_refused(ranks):
    expected = []
    for iteration in range(5):
        batches = [data(rank, iteration) for rank in range(ranks.world)]
        mean = numbers(oracle.averaged_gradients(models.Parts("abc"), batches, ranks.world).items())
        frozen = [part for part, iterations in FROZEN.items() if iteration < iterations]
        expected.append(mean | dict.fromkeys(name for name in mean if name.split(".")[1] in frozen))
    for rank, (error, told) in enumerate(ranks(thaw)):
        if error is not None:
            assert error.is_a(RuntimeError), f"rank {rank}: {error}"
            assert "param" in error.text, f"rank {rank}: {error}"
            ranks.at_limit("what was frozen when the model was wrapped is refused once it is trained")
        for way, seen in told.items():
            for iteration, found in enumerate(seen):
                assert found == expected[iteration], f"rank {rank}, iteration {iteration}, {way}"


def cast_and_cast_back(ctx):
    """Iterations before each of which the whole model is cast, past the wrapper, and cast back; or the refusal."""
    told = {}

    def use():
        for way, options in WAYS.items():
            model, told[way] = wrapped(ctx, two_parts(), **options), []
            for iteration in range(5):
                model.module.double().float()
                told[way].append(trained(model, data(ctx.rank, iteration).to(ctx.device)))

    error = caught(use)
    ctx.meet("told")
    return error, told


@check("DDP-034", worlds=MANY, beyond=False)
def test_a_model_that_was_cast_and_cast_back_is_averaged_or_refused(ranks):
    means = averages_of_two_parts(ranks.world, 5)
    for rank, (error, told) in enumerate(ranks(cast_and_cast_back)):
        if error is not None:
            assert error.is_a(RuntimeError), f"rank {rank}: {error}"
            assert "param" in error.text, f"rank {rank}: {error}"
            ranks.at_limit("a model that was cast and cast back is refused")
        refused = None if error is None else list(told)[-1]
        for way, seen in told.items():
            trusted = seen[:-1] if way == refused else seen  # the error is that of the last iteration
            assert trusted == means[: len(trusted)], f"rank {rank}, {way}: goes on with local gradients"
            assert way == refused or len(seen) == len(means), f"rank {rank}, {way}"


# -- DDP-049: moved while nothing is recorded


def move_in_inference_mode(ctx):
    """As a validation does that begins with moving the model to where it is."""
    model, seen = wrapped(ctx, models.scalar()), []
    for iteration in range(3):
        model.zero_grad()
        model(models.divisible_scalar(ctx.rank, iteration).to(ctx.device)).sum().backward()
        seen.append(gradient(model.module.weight))
        with torch.inference_mode():
            model.to(ctx.device)
    return seen


@check("DDP-049", worlds=(1, 2), beyond=False)
def test_a_model_may_be_moved_in_inference_mode(ranks):
    assert ranks(move_in_inference_mode) == [scalar_means((3,) * ranks.world)] * ranks.world


def evaluate_in_inference_mode(ctx):
    """Weights are laid out otherwise; then a context in which ranks evaluate by themselves, and go on training."""
    model, seen = wrapped(ctx, two_parts()), []
    for iteration in range(4):
        if iteration == 1:
            for parameter in model.parameters():
                parameter.data = turned(parameter.data)
            with torch.inference_mode(), ctx.subject.Join([model]):
                for _ in range(ctx.rank):
                    model.module(data(ctx.rank, iteration).to(ctx.device))
        model.zero_grad()
        model(data(ctx.rank, iteration).to(ctx.device)).sum().backward()
        seen.append(gradients(model))
    return seen


@check("DDP-049", worlds=MANY, beyond=False)
def test_a_context_may_be_entered_in_inference_mode_with_weights_that_were_laid_out_anew(ranks):
    assert ranks(evaluate_in_inference_mode) == [averages_of_two_parts(ranks.world, 4)] * ranks.world


def wrap_in_inference_mode(ctx):
    """What a model that is wrapped and evaluated in inference mode answers, and its gradients later on, or an error."""
    module = models.scalar().to(ctx.device)
    with torch.inference_mode():
        model = wrapped(ctx, module)
        answer = model(models.divisible_scalar(ctx.rank, 0).to(ctx.device)).sum().item()

    def train():
        for iteration in range(2):
            model.zero_grad()
            model(models.divisible_scalar(ctx.rank, iteration).to(ctx.device)).sum().backward()

    error = caught(train)
    return answer, error, None if error else gradient(model.module.weight)


@check("DDP-036", "DDP-049", worlds=MANY, beyond=False)
def test_a_model_may_be_wrapped_and_evaluated_in_inference_mode_and_trained_later_or_is_refused(ranks):
    (*_, mean), weight = scalar_means((2,) * ranks.world), models.scalar().weight.item()
    for rank, (answer, error, found) in enumerate(ranks(wrap_in_inference_mode)):
        assert answer == weight * models.divisible_scalar(rank, 0).sum().item(), f"rank {rank}"
        if error is not None:
            assert error.is_a(RuntimeError), f"rank {rank}: {error}"
            assert "inference" in error.text.lower(), f"rank {rank}: {error}"
            ranks.at_limit("a model that was wrapped in inference mode cannot be trained")
        else:
            assert found == mean, f"rank {rank}"


def evaluate_only(ctx):
    """All of an evaluation in inference mode, the making of the model too, whose weight differs between the ranks."""
    with torch.inference_mode():
        model = wrapped(ctx, models.scalar(1.0 + ctx.rank))
        return model(models.divisible_scalar(ctx.rank, 0).to(ctx.device)).sum().item()


@check("DDP-025", "DDP-036", worlds=MANY, beyond=False)
def test_a_program_that_only_evaluates_may_do_all_of_it_in_inference_mode(ranks):
    for rank, answer in enumerate(ranks(evaluate_only)):
        assert answer == models.divisible_scalar(rank, 0).sum().item(), f"rank {rank} has not the weight of rank 0"


def step_with_sizes(ctx, model, rows):
    """The gradients of two iterations with so many rows, the last ones, or the error."""
    layer, shape = model.module, torch.arange(1.0, rows + 1, device=ctx.device)
    layer.weight.data, layer.bias.data = (torch.ones(*size, device=ctx.device) for size in ((rows, 2), (rows,)))
    batch = torch.tensor([[1.0, 2.0]], device=ctx.device) * (ctx.rank + 1)

    def iterate():
        model.zero_grad()
        (model(batch) * shape).sum().backward()

    return caught(iterate) or caught(iterate) or gradients(model)


def give_other_sizes(ctx, rows):
    """By way and number of rows, the gradients of a layer that is given so many; an error is the last."""
    told, delays = {}, ("delay_all_reduce_named_params", "param_to_hook_all_reduce")
    for way in WAYS if missing_of(ctx, *delays) else (*WAYS, "delayed"):
        layer = nn.Linear(2, rows[0]).to(ctx.device)
        delayed = dict(zip(delays, ([("bias", layer.bias)], layer.weight), strict=True))
        model, told[way] = wrapped(ctx, layer, **WAYS.get(way, delayed)), []
        for count in rows:
            told[way].append(step_with_sizes(ctx, model, count))
            if not isinstance(told[way][-1], dict):
                break
    return told


@check("DDP-034", worlds=MANY, beyond=False)
def test_parameters_that_are_given_another_size_are_averaged_or_refused(ranks):
    mean = (ranks.world + 1) / 2
    for rows in ((1, 3, 2), (3, 1)):
        expected = [
            {"weight": [row * each * mean for row in range(1, count + 1) for each in (1.0, 2.0)],
             "bias": [float(row) for row in range(1, count + 1)]}
            for count in rows
        ]  # fmt: skip
        for rank, by_way in enumerate(ranks(give_other_sizes, rows)):
            for way, told in by_way.items():
                averaged = [each for each in told if isinstance(each, dict)]
                assert averaged == expected[: len(averaged)], f"rank {rank}, {way}, {rows} rows: {averaged}"
                if averaged != told:
                    assert told[-1].is_a(RuntimeError), told[-1]
                    ranks.at_limit("a parameter that is given another size after wrapping is refused")
