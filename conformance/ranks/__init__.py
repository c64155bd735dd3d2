"""N real ranks with a deadline: run a function on each and learn what became of it.

    cluster = Cluster(backend="gloo")
    run = cluster.run(function, args, world=3, subject=subject)      # function(ctx, *args) on every rank
    run.values()                                                     # results in rank order, or RunFailed
"""

from .backends import NotRunnable
from .context import RankContext
from .fork_server_client import ForkServerFailed
from .launch import Cluster
from .outcomes import Caught, Died, Event, Finished, Hung, Outcome, Raised, Run, RunFailed, caught

__all__ = [
    "Caught",
    "Cluster",
    "Died",
    "Event",
    "Finished",
    "ForkServerFailed",
    "Hung",
    "NotRunnable",
    "Outcome",
    "Raised",
    "RankContext",
    "Run",
    "RunFailed",
    "caught",
]
