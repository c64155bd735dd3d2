"""A context over a model, a plain joinable and a sharded optimizer is left in every way; then it is entered again."""

import time

import torch.distributed as dist

from conformance.api.checking import check
from conformance.api.schedules import promised_log
from conformance.fixtures import models
from conformance.fixtures.joinables import recorder
from conformance.fixtures.sharding import Alone, sharded, whole
from conformance.fixtures.training import ddp
from conformance.ranks import caught

SLOW_S = 0.15
OPTIMIZER = "SGD with momentum and decay"
UNEVEN, EVEN, UPWARDS = (3, 1, 2), (2, 2, 2), (0, 2, 3)

#: By way: the keywords of the context, how often each rank iterates in it, and where an error ends the block, if any.
WAYS = {
    "evenly": ({}, EVEN, ""),
    "unevenly": ({}, UNEVEN, ""),
    "by an error of all": ({}, EVEN, "body"),
    "by an error before anything": ({}, (0, 0, 0), "body"),
    "by an error in a forward": ({}, EVEN, "forward"),
    "by an error in a backward": ({}, EVEN, "backward"),
    "throwing": ({"throw_on_early_termination": True}, (1, 2, 2), ""),
    "disabled": ({"enable": False}, EVEN, ""),
}


def spill(*_):
    raise LookupError("spilled the tea")


class Trainer:
    """The three joinables on a group of their own, and one process that follows them."""

    def __init__(self, ctx):
        self.ctx, group = ctx, dist.new_group()
        self.model, self.log = models.Sum(2).to(ctx.device), []
        self.alone = Alone(ctx, self.model, OPTIMIZER, EVEN)
        self.ddp = ddp(ctx, self.model, process_group=group)
        self.zero = sharded(ctx, self.model.parameters(), OPTIMIZER, process_group=group)
        self.beside = recorder(ctx, "a", self.log, group=group)
        self.first, self.slow = 0, False

    def join(self, **keywords):
        return self.ctx.subject.Join([self.ddp, self.beside, self.zero], **keywords)

    def run(self, context, schedule, fails=""):
        """A block of so many iterations on each rank; the error that it ended with."""
        return caught(self._block, context, schedule, fails)

    def _block(self, context, schedule, fails):
        with context:
            for number in range(schedule[self.ctx.rank]):
                if self.slow and self.ctx.rank == 1:
                    time.sleep(SLOW_S)  # so that the others wait for long, and look out for failures
                self.zero.zero_grad()
                self.ddp(whole(self.ctx.rank, self.first + number).to(self.ctx.device)).sum().backward()
                self.beside.step()
                self.zero.step()
            if fails == "forward":
                with self.ddp.module.register_forward_pre_hook(spill):
                    self.ddp(whole(0, 0).to(self.ctx.device))
            if fails == "backward":
                with self.ddp.module.layers[0].weight.register_hook(spill):
                    self.ddp(whole(0, 0).to(self.ctx.device)).sum().backward()
            if fails:
                spill()

    def follow(self, schedule):
        """One process goes through the same block; where the model then differs."""
        self.alone.schedule = tuple(self.first + count for count in schedule)
        for number in range(max(schedule)):
            self.alone.step(self.first + number)
        self.first += 10
        return self.alone.gap(self.model)


def leave_and_come_back(ctx, ways):
    """By way: the error, gaps after the block and after two more contexts, the flags in between, the log of the two."""
    told = {}
    for way, (keywords, schedule, fails) in ways.items():
        trainer = Trainer(ctx)
        context = trainer.join(**keywords)
        error = trainer.run(context, schedule, fails)
        gaps = [trainer.follow([min(schedule)] * ctx.world if keywords.get("throw_on_early_termination") else schedule)]
        flags = [tuple(each._join_config) for each in (trainer.ddp, trainer.beside, trainer.zero)]
        trainer.log.clear()
        trainer.slow = fails == "body"
        errors = []
        for again, counts in ((context, EVEN if keywords else UPWARDS), (trainer.join(), UNEVEN)):
            errors.append(trainer.run(again, counts))
            gaps.append(trainer.follow(counts))
        told[way] = (error, gaps, flags, errors, trainer.log)
    return told


@check("ZERO-022", worlds=(3,), deadline_s=15, beyond=False)
def test_a_context_that_was_left_in_any_way_serves_again_and_trains_as_one_process(ranks):
    for rank, told in enumerate(ranks(leave_and_come_back, WAYS)):
        for way, (error, gaps, flags, errors, log) in told.items():
            about = f"rank {rank}, schedule {WAYS[way][1]}, left {way}"
            kind = LookupError if WAYS[way][2] else RuntimeError if way == "throwing" else None
            assert (error is None) if kind is None else error is not None and error.is_a(kind), f"{about}: {error}"
            assert errors == [None, None], f"{about}: the contexts afterwards raise {errors}"
            assert gaps == [None] * 3, about
            assert flags == [(False, False, False)] * 3, about
            again = ["a step"] * 2 if way == "disabled" else promised_log(EVEN if WAYS[way][0] else UPWARDS, rank, "a")
            assert log == [*again, *promised_log(UNEVEN, rank, "a")], about
