"""The second factor stays each rank's own."""

from typing import Any

import torch

from impl.ddp.hooks import powerSGD_hook

from ..planting import swap

CLAUSES = ("COMM-026",)


def plant() -> None:
    def send(self: Any) -> Any:
        own = [q.clone() for q in self.qs]
        pending = right(self)
        self.own = own
        return pending

    def decompress(self: Any) -> torch.Tensor:
        done = finish(self)
        for group, p, q in zip(self.plan.groups, self.ps, self.own, strict=True):
            powerSGD_hook._write(group, self.gradients, torch.bmm(p, q.transpose(1, 2)))
        return done

    right = swap(powerSGD_hook._Exchange, "send_q_and_rest", send)
    finish = swap(powerSGD_hook._Exchange, "decompress", decompress)
