from careful_ddp import DistributedDataParallel, Join, Joinable, JoinHook
from conformance.subjects import Subject

public = [Join, Joinable, JoinHook, DistributedDataParallel]
subject = Subject(
    name="careful",
    version="1.0",
    names={each.__name__: each for each in public},
    lacks={"ZeroRedundancyOptimizer": "we shard by other means"},
)
