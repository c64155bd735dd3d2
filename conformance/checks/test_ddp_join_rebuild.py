"""The one rebuild of the buckets and what follows it, with ranks that have seen nothing or another order themselves."""

from dataclasses import replace
from functools import partial

from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.training import Job, ddp, expected, iterate

TINY_MIB = 1e-4


def train_in_two_contexts(ctx, jobs):
    """One model in one context after the other; the gradients of this rank's iterations in each."""
    seen = []
    for first, second in jobs:
        model = ddp(ctx, first.model(), **first.ddp)
        seen.append([iterate(ctx, model, job, model.join()) for job in (first, second)])
    return seen


@check("DDPJ-031", "DDPJ-034", worlds=MANY, beyond=False)
def test_a_rank_without_inputs_agrees_about_the_buckets_in_the_next_context(ranks):
    world = ranks.world
    idle_first, idle_last = (0, *[1] * (world - 1)), (*[1] * (world - 1), 0)
    jobs = []
    for model in (models.Sum, models.SumBackwards):
        for schedule in (idle_first, idle_last, (0, *[3] * (world - 1))):
            job = Job(partial(model, 6), models.divisible, schedule, ddp={"bucket_cap_mb": TINY_MIB})
            jobs.append((job, replace(job, schedule=(3,) * world)))
    averages = [[expected(job)[0] for job in pair] for pair in jobs]
    for rank, told in enumerate(ranks(train_in_two_contexts, jobs)):
        for pair, alone, seen in zip(jobs, averages, told, strict=True):
            for job, means, mine in zip(pair, alone, seen, strict=True):
                assert mine == means[: job.schedule[rank]], f"rank {rank}, schedules {[each.schedule for each in pair]}"
