"""PowerSGD beside torch's: the same seed starts both with the same factors."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as theirs

from impl.ddp.hooks import powerSGD_hook as ours
from impl.ddp.hooks.powersgd_state import below, mersenne_twister

from .comm_hook_ranks import run_on_ranks
from .test_comm_hooks_on_ranks import bucket_of, random

pytestmark = pytest.mark.slow

SHAPES = ((8, 12), (5,), (6, 4, 4), (8, 12))


def reduce_by(module, hook, rank, options):
    """What the hook makes of two buckets in three iterations; the second has nothing to compress at first sight."""
    state = module.PowerSGDState(dist.group.WORLD, start_powerSGD_iter=2, **options)
    state.iter, results = 2, []
    for iteration in range(3):
        for index, shapes in enumerate((((3,),), SHAPES)):
            gradients = [random(rank, *shape, seed=10 * iteration + place) for place, shape in enumerate(shapes)]
            bucket = bucket_of(gradients, index=index, last=index == 1)
            results.append(getattr(module, hook)(state, bucket).wait().tolist())
    return results


def reduce_by_both(rank, world, hook, options):
    return [reduce_by(module, hook, rank, options) for module in (ours, theirs)]


CASES = [
    {"matrix_approximation_rank": 1},
    {"matrix_approximation_rank": 3, "min_compression_rate": 1},
    {"matrix_approximation_rank": 1, "random_seed": 7, "warm_start": False},
    {"matrix_approximation_rank": 1, "batch_tensors_with_same_shape": True},
    {"matrix_approximation_rank": 1, "orthogonalization_epsilon": 1e-3},
]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_without_error_feedback_the_results_are_torchs(world):
    for options in CASES:
        for mine, his in run_on_ranks(reduce_by_both, world, "powerSGD_hook", {**options, "use_error_feedback": False}):
            if world < 3:
                assert mine == his, options
            for one, other in zip(mine, his, strict=True):  # from three ranks on the order of a sum depends on where
                assert torch.allclose(torch.tensor(one), torch.tensor(other), atol=1e-5), options  # a message is cut


def test_with_error_feedback_the_first_result_is_torchs_and_later_ones_are_our_own():
    for mine, his in run_on_ranks(reduce_by_both, 2, "powerSGD_hook", {}):
        assert mine[:2] == his[:2]
        assert mine[3] != his[3]  # the error that a rank remembers is its own here, as in the paper


def test_two_columns_start_alike_and_differ_by_rounding_only():
    options = {"matrix_approximation_rank": 2, "use_error_feedback": False}
    for mine, his in run_on_ranks(reduce_by_both, 2, "powerSGD_hook", options):
        for one, other in zip(mine, his, strict=True):
            assert torch.allclose(torch.tensor(one), torch.tensor(other), atol=1e-5)


def test_seeds_are_drawn_as_numpy_draws_them():
    numpy = pytest.importorskip("numpy")
    for seed in (0, 1, 2**32 - 1):
        generator, expected = mersenne_twister(seed), numpy.random.RandomState(seed)
        assert [below(generator, 10**9) for _ in range(700)] == [expected.randint(10**9) for _ in range(700)]


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_torch_would_refuse_is_refused(seed):
    with pytest.raises(ValueError, match="random_seed"):
        ours.PowerSGDState(None, random_seed=seed)
