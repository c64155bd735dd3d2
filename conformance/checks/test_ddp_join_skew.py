"""The warning of a large skew counts iterations, of whichever model has most, and not what several models do."""

from conformance.api.checking import check
from conformance.fixtures import models
from conformance.fixtures.observing import about, warned
from conformance.fixtures.training import ddp

THRESHOLD = 1000


def train_long(ctx, count, several):
    """Rank 0 has nothing, all others ``count`` iterations of one or two models; the warnings of this rank."""
    pair = [ddp(ctx, models.scalar()) for _ in range(1 + several)]

    def train():
        with ctx.subject.Join(pair):
            for _ in range(count if ctx.rank else 0):
                for model in pair:
                    model(models.place(ctx.rank, 0)).sum().backward()

    return about(warned(train), "UserWarning", str(THRESHOLD))


@check("JOIN-035", worlds=(2,))
def test_under_ddp_a_rank_warns_that_has_shadowed_more_than_a_thousand_iterations(ranks):
    joined, live = ranks(train_long, THRESHOLD + 1, False)
    assert len(joined) == 1
    assert "rank 0" in joined[0].lower()
    assert live == []


@check("JOIN-035", worlds=(2,))
def test_iterations_of_two_models_are_not_added_up(ranks):
    assert ranks(train_long, THRESHOLD // 2 + 10, True) == [[], []]
