"""N real ranks with a deadline: run a function on each and learn what became of it.

    cluster = Cluster(backend="gloo")
    run = cluster.run(function, args, world=3, subject=subject)      # function(ctx, *args) on every rank
    run.values()                                                     # results in rank order, or RunFailed
"""

from .backends import NotRunnable
from .context import RankContext
from .launch import Cluster
from .nursery import NurseryFailed
from .outcomes import Caught, Died, Event, Finished, Hung, Outcome, Raised, Run, RunFailed, caught

__all__ = [
    "Caught", "Cluster", "Died", "Event", "Finished", "Hung", "NotRunnable", "NurseryFailed", "Outcome", "Raised",
    "RankContext", "Run", "RunFailed", "caught",
]
