"""What every reproduction runs on: ranks that are processes with a deadline, and the verdict."""

import signal
import sys
import tempfile
import time
from multiprocessing import connection, get_context

import torch
import torch._dynamo  # which DDP and optimizers would load in every rank
import torch.distributed as dist


def judge(train, promised, *kept, world=2, deadline=15):
    def work(rank):
        signal.alarm(deadline + 5)  # no rank outlives this script for long, whatever ends it
        dist.init_process_group("gloo", f"file://{store.name}", rank=rank, world_size=world)
        try:
            outcome = train(rank)
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        pipes[rank][1].send(outcome)
        time.sleep(deadline)  # leaving now would break the other ranks' connections

    print(f"promised: {promised}\nexpected of every rank: {' or '.join(map(str, kept))}", flush=True)
    fork, seen, end = get_context("fork"), [], time.monotonic() + deadline
    pipes = [fork.Pipe(duplex=False) for _ in range(world)]
    with tempfile.NamedTemporaryFile() as store:
        ranks = [fork.Process(target=work, args=[rank], daemon=True) for rank in range(world)]
        for process in ranks:
            process.start()
        for process, (pipe, _) in zip(ranks, pipes, strict=True):
            connection.wait([pipe, process.sentinel], max(0, end - time.monotonic()))
            code = None if pipe.poll() else process.join(0.5) or process.exitcode
            seen.append(pipe.recv() if pipe.poll() else "hangs" if code is None else f"died with exit code {code}")
            print(f"rank {len(seen) - 1}: {seen[-1]}")
    print("BROKEN" if (broken := any(one not in kept for one in seen)) else "KEPT", "with torch", torch.__version__)
    sys.exit(broken)
