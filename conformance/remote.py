"""RPC among the ranks of a run, for the few promises that concern it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from torch.distributed import rpc

from .checking import NotRun
from .ranks import RankContext


@contextlib.contextmanager
def remote_calls(ctx: RankContext) -> Iterator[None]:
    """RPC is up inside the block, on every rank. The ranks meet in a file, whose name travels beside the group."""
    if not rpc.is_available():
        raise NotRun("this torch was built without RPC")
    if not ctx.one_machine:
        raise NotRun("ranks that use RPC meet in a file here, and these ranks are on several machines")
    if ctx.rank == 0:
        ctx.store.set("rpc", tempfile.mkdtemp(prefix="rpc-"))
    folder = Path(ctx.store.get("rpc").decode())
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder / 'meeting'}", rpc_timeout=3)
    rpc.init_rpc(f"rank{ctx.rank}", rank=ctx.rank, world_size=ctx.world, rpc_backend_options=options)
    try:
        yield
    finally:
        ctx.meet("done with rpc")
        rpc.shutdown(graceful=False)
        if ctx.rank == 0:
            (folder / "meeting").unlink(missing_ok=True)
            folder.rmdir()
