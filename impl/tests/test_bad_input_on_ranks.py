"""Wrong uses of every public class and function: the class and words promised, on every rank, and nothing half done.

All of them happen on the same two ranks, one after the other, so each row also proves that the one before it left
neither a collective half done nor a hook behind: what follows the last one is an ordinary iteration.
"""

import pytest
import torch
from torch import nn

import impl
from impl.ddp.hooks import default_hooks, optimizer_overlap_hooks, powerSGD_hook, quantization_hooks
from impl.overlap import hook_with_zero_step, hook_with_zero_step_interleaved


class Rank:
    """What the lines below are about, made once on each rank."""

    def __init__(self):
        self.model = nn.Linear(2, 2)
        self.ddp = impl.DistributedDataParallel(nn.Linear(2, 2))
        self.zero = impl.ZeroRedundancyOptimizer(self.ddp.parameters(), torch.optim.SGD, lr=0.5)
        self.overlapped = impl.ZeroRedundancyOptimizer(
            self.ddp.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.5
        )
        self.other = impl.ZeroRedundancyOptimizer(
            nn.Linear(3, 3).parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.5
        )

    def wrap(self, module=None, **keywords):
        return impl.DistributedDataParallel(nn.Linear(2, 2) if module is None else module, **keywords)

    def shard(self, params=None, optimizer_class=torch.optim.SGD, **keywords):
        params = self.model.parameters() if params is None else params
        return impl.ZeroRedundancyOptimizer(params, optimizer_class, **({"lr": 0.5} | keywords))


class NoJoinable:
    pass


class Deviceless(impl.Joinable):
    def __init__(self):
        super().__init__()

    def join_hook(self, **_keywords):
        return impl.JoinHook()

    join_device = "cpu"
    join_process_group = None


class Uninitialised(Deviceless):
    def __init__(self):
        pass


class Half(impl.Joinable):
    """Says nothing of what a joinable must say."""


def frozen(bias=True):
    module = nn.Linear(2, 2, bias=bias)
    return module.requires_grad_(False)


def on_meta():
    return nn.Linear(2, 2, device="meta")


def hook(state, bucket):
    return torch.futures.Future()


def not_a_future(_state, _bucket) -> torch.Tensor:
    return torch.zeros(1)


def enter(joinables, **keywords):
    with impl.Join(joinables, **keywords):
        pass


DDP = {
    "no module": (lambda r: r.wrap(3), TypeError, "torch.nn.Module"),
    "a list of modules": (lambda r: r.wrap([nn.Linear(2, 2)]), TypeError, "torch.nn.Module"),
    "a class": (lambda r: r.wrap(nn.Linear), TypeError, "torch.nn.Module"),
    "nothing to train": (lambda r: r.wrap(frozen()), RuntimeError, "gradient"),
    "an unknown keyword": (lambda r: r.wrap(buckets=3), TypeError, "buckets"),
    "a cap that is text": (lambda r: r.wrap(bucket_cap_mb="many"), ValueError, "number of MiB"),
    "one device listed of a CPU module": (lambda r: r.wrap(device_ids=[0]), ValueError, "device_ids"),
    "two devices": (lambda r: r.wrap(device_ids=[0, 1]), ValueError, "device_ids"),
    "an output device of a CPU module": (lambda r: r.wrap(output_device=0), ValueError, "output_device"),
    "delayed parameters without a trigger": (
        lambda r: r.wrap(delay_all_reduce_named_params=[("weight", nn.Parameter(torch.ones(1)))]),
        ValueError, "both or",
    ),
    "a trigger without delayed parameters": (
        lambda r: r.wrap(param_to_hook_all_reduce=nn.Parameter(torch.ones(1))), ValueError, "both or",
    ),
    "a mesh that is none": (lambda r: r.wrap(device_mesh=object()), TypeError, "device_mesh must be a DeviceMesh"),
    "a hook that is none": (lambda r: r.wrap().register_comm_hook(None, 3), TypeError, "callable"),
    "a hook of another result": (
        lambda r: r.wrap().register_comm_hook(None, not_a_future), ValueError, "torch.futures.Future",
    ),
    "a second hook": (
        lambda r: [r.twice.register_comm_hook(None, hook) for r.twice in [r.wrap()] for _ in (1, 2)],
        RuntimeError, "once",
    ),
    "a built-in hook that is none": (lambda r: r.wrap()._register_builtin_comm_hook(3), TypeError, "uilt-in"),
    "a hook by another name": (
        lambda r: impl.register_ddp_comm_hook("fp8", r.wrap()), TypeError, "must be a DDPCommHookType (ALLREDUCE",
    ),
}  # fmt: skip
ZERO = {
    "a bare parameter": (lambda r: r.shard(nn.Parameter(torch.ones(1))), TypeError, "[parameter]"),
    "a number": (lambda r: r.shard(3), TypeError, "iterable"),
    "no parameter": (lambda r: r.shard([]), ValueError, "empty"),
    "tensors and groups": (
        lambda r: r.shard([torch.ones(1), {"params": [torch.ones(1)]}]), TypeError, "tensors only",
    ),
    "named parameters": (lambda r: r.shard(r.model.named_parameters()), TypeError, "named_parameters()"),
    "a group without parameters": (lambda r: r.shard([{"lr": 0.1}]), ValueError, "'params'"),
    "groups of nothing": (lambda r: r.shard([{"params": []}]), ValueError, "no parameter at all"),
    "a group that holds a text": (lambda r: r.shard([{"params": ["weight"]}]), TypeError, "where a tensor belongs"),
    "a group that is a list": (lambda r: r.zero.add_param_group([r.model.weight]), TypeError, "not a dictionary"),
    "several data types": (
        lambda r: r.shard([nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1).double())]), ValueError, "same",
    ),
    "a sparse parameter": (lambda r: r.shard([torch.ones(2, 2).to_sparse()]), ValueError, "sparse"),
    "an optimizer that is a number": (lambda r: r.shard(None, 3), TypeError, "optimizer_class"),
    "an optimizer of another class": (lambda r: r.shard(None, nn.Linear), TypeError, "optimizer_class"),
    "an optimizer that is an object": (
        lambda r: r.shard(None, torch.optim.SGD(r.model.parameters(), lr=1.0)), TypeError, "optimizer_class",
    ),
    "an unknown setting": (lambda r: r.shard(None, wings=2), TypeError, "wings"),
    "a learning rate below zero": (lambda r: r.shard(None, lr=-1.0), ValueError, "learning rate"),
    "a state that is not whole": (lambda r: r.zero.state_dict(), RuntimeError, "consolidate_state_dict(to="),
    "consolidation to no rank": (lambda r: r.zero.consolidate_state_dict(to=9), ValueError, "to=9 is not a rank"),
    "consolidation to one rank too far": (
        lambda r: r.zero.consolidate_state_dict(to=2), ValueError, "to=2 is not a rank",
    ),
    "consolidation to a rank below the first": (
        lambda r: r.zero.consolidate_state_dict(to=-1), ValueError, "to=-1 is not a rank",
    ),
    "consolidation before a step": (
        lambda r: r.overlapped.consolidate_state_dict(), RuntimeError, "Run one iteration first",
    ),
    "a group added to an overlapped one": (
        lambda r: r.overlapped.add_param_group({"params": [nn.Parameter(torch.ones(1))]}), RuntimeError, "overlap",
    ),
    "a parameter that is there already": (
        lambda r: r.zero.add_param_group({"params": list(r.ddp.parameters())}), ValueError, "",
    ),
    "a state of other groups": (lambda r: r.zero.load_state_dict({"state": {}, "param_groups": []}), ValueError, ""),
    "a state that is none": (lambda r: r.zero.load_state_dict({}), (KeyError, ValueError), ""),
}  # fmt: skip
JOIN = {
    "nothing to join": (lambda r: enter([]), ValueError, ""),
    "one joinable bare": (lambda r: enter(r.ddp), (TypeError, ValueError), ""),
    "what is no joinable": (lambda r: enter([NoJoinable()]), TypeError, "NoJoinable"),
    "a joinable and a number": (lambda r: enter([r.ddp, 3]), TypeError, "int"),
    "an abstract joinable": (lambda r: enter([Half()]), TypeError, "abstract"),
    "the same twice": (lambda r: enter([r.ddp, r.ddp]), (ValueError, RuntimeError), ""),
    "notification of what is no joinable": (
        lambda r: impl.Join.notify_join_context(3), AssertionError, "Call super().__init__()",
    ),
    "notification before construction": (
        lambda r: impl.Join.notify_join_context(Uninitialised()), AssertionError, "Call super().__init__()",
    ),
}  # fmt: skip
OVERLAP = {
    "no DDP": (lambda r: hook_with_zero_step(default_hooks.allreduce_hook, r.model, r.overlapped), TypeError, "need"),
    "no ZeRO": (
        lambda r: hook_with_zero_step(
            default_hooks.allreduce_hook, r.ddp, torch.optim.SGD(r.ddp.parameters(), lr=1.0)
        ), TypeError, "need",
    ),
    "ZeRO that steps by itself": (
        lambda r: hook_with_zero_step(default_hooks.allreduce_hook, r.ddp, r.zero), ValueError, "overlap_with_ddp=True",
    ),
    "parameters of another model": (
        lambda r: hook_with_zero_step(default_hooks.allreduce_hook, r.ddp, r.other), ValueError, "another model",
    ),
    "a hook that is none": (lambda r: hook_with_zero_step(3, r.ddp, r.overlapped), TypeError, "communication hook"),
    "interleaved without DDP": (
        lambda r: hook_with_zero_step_interleaved(default_hooks.allreduce_hook, r.model, r.overlapped),
        TypeError, "need",
    ),
    "interleaved with ZeRO that steps by itself": (
        lambda r: hook_with_zero_step_interleaved(default_hooks.allreduce_hook, r.ddp, r.zero),
        ValueError, "overlap_with_ddp=True",
    ),
    "interleaved with a hook that is none": (
        lambda r: hook_with_zero_step_interleaved(3, r.ddp, r.overlapped), TypeError, "communication hook",
    ),
    "warming up for less than nothing": (
        lambda r: hook_with_zero_step(default_hooks.allreduce_hook, r.ddp, r.overlapped, warm_up_iterations=-1),
        ValueError, "0 or more",
    ),
    "clipping to nothing": (
        lambda r: hook_with_zero_step(default_hooks.allreduce_hook, r.ddp, r.overlapped, max_norm=0.0),
        ValueError, "max_norm must be a positive number",
    ),
    "another hook scattered": (
        lambda r: hook_with_zero_step(hook, r.ddp, r.overlapped, reduce_scatter=True),
        ValueError, "reduce_scatter=True",
    ),
}  # fmt: skip
COMM = {
    "PowerSGD of rank 0": (
        lambda r: powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=0), ValueError, "at least 1",
    ),
    "PowerSGD that starts at once": (
        lambda r: powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=1), ValueError, "start_powerSGD_iter",
    ),
    "PowerSGD with a seed below zero": (
        lambda r: powerSGD_hook.PowerSGDState(None, random_seed=-1), ValueError, "random_seed",
    ),
    "a channel of nothing": (
        lambda r: quantization_hooks.quantization_perchannel_hook(None, None, bucket_size=0), ValueError, "bucket_size",
    ),
    "an optimizer that cannot step one parameter": (
        lambda r: optimizer_overlap_hooks._hook_then_optimizer(hook, optimizer_overlap_hooks._OptimizerHookState(3)),
        ValueError, "has no method",
    ),
}  # fmt: skip
AREAS = {"DDP": DDP, "ZeRO": ZERO, "Join": JOIN, "overlap": OVERLAP, "hooks": COMM}
TABLE = {f"{area}: {name}": row for area, rows in AREAS.items() for name, row in rows.items()}


def misuse_everything(ctx):
    """What each row raised on this rank, as class names and words; then one iteration, to see that all still works."""
    rank, found = Rank(), {}
    for name, (act, kinds, _) in TABLE.items():
        try:
            act(rank)
            found[name] = ("nothing", "", False)
        except Exception as error:
            found[name] = (type(error).__name__, str(error), isinstance(error, kinds))
    loss = rank.ddp(torch.full((1, 2), float(ctx.rank + 1))).sum()
    loss.backward()
    rank.zero.step()
    return found, [p.grad.tolist() for p in rank.ddp.parameters()]


@pytest.fixture(scope="module")
def found(gloo_cluster):
    return gloo_cluster.run(misuse_everything, (), world=2, subject="impl").values()


@pytest.mark.parametrize("name", TABLE)
def test_a_wrong_use_raises_its_class_with_its_words_on_every_rank(found, name):
    for rank, (seen, _) in enumerate(found):
        kind, text, as_promised = seen[name]
        assert as_promised, f"rank {rank}: {kind}: {text}"
        assert TABLE[name][2] in text, f"rank {rank}: {text}"
        assert len(text) > 10, text


def test_after_all_of_them_an_iteration_is_as_ever(found):
    (_, first), (_, second) = found
    assert first == second == [[[1.5, 1.5], [1.5, 1.5]], [1.0, 1.0]]
