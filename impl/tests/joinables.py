"""A joinable that says what a joinable must say, and nothing more: tests give it hooks and steps of their own."""

import torch
import torch.distributed as dist

from impl.join import Joinable, JoinHook


class Plain(Joinable):
    """On the CPU, and on this group, by default that of the world."""

    def __init__(self, group=None):
        super().__init__()
        self.group = group

    def join_hook(self, **_):
        return JoinHook()

    @property
    def join_device(self):
        return torch.device("cpu")

    @property
    def join_process_group(self):
        return dist.group.WORLD if self.group is None else self.group
