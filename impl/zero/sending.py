"""Which parameters are stepped and sent: those that have ever required a gradient; and the transfers that send them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from ..comm.pending import Watch
from .arguments import Group
from .compat import SENT_FROM_BACKWARD
from .groups import take_settings
from .publish import Publisher
from .sharded import Sharded

logger = logging.getLogger(__name__)


class Sending(Sharded):
    """The side of ``ZeroRedundancyOptimizer`` that brings every owner's parameters to all ranks."""

    parameters_as_bucket_view: bool
    #: requires_grad of every parameter at the last look, by global index
    _trainable: tuple[bool, ...] = ()
    #: whether each parameter has ever required a gradient, here or (in a join context) on a live rank
    _sent: tuple[bool, ...] = ()
    #: the transfers of a step; None when they must be made anew
    _publisher: Publisher | None = None

    def _look_at_trainability(self) -> None:
        """Notice a change of ``requires_grad`` since the last look (ZERO-013)."""
        now = tuple([parameter.requires_grad for parameter in self._parameters()])
        if now == self._trainable:
            return
        if self._trainable and len(now) == len(self._trainable):
            changed = _places_that_differ(now, self._trainable)
            logger.warning("requires_grad of parameter(s) %s has changed; the transfers are made anew.", changed)
        self._trainable = now
        self._also_send(now)

    def _also_send(self, more: Sequence[bool]) -> None:
        before = [*self._sent, *([False] * (len(more) - len(self._sent)))]
        sent = tuple(old or new for old, new in zip(before, more, strict=True))
        if sent != self._sent:
            self._sent = sent
            self._publisher = None

    def _sent_parameters(self) -> tuple[bool, ...]:
        return self._sent

    def _check_trainability_unchanged(self) -> None:
        """RuntimeError if ``requires_grad`` has changed since the owners were fixed (ZERO-027)."""
        if self._partial_steps is None:
            return
        now = tuple([parameter.requires_grad for parameter in self._parameters()])
        if now != self._trainable:
            raise RuntimeError(
                f"requires_grad of parameter(s) {_places_that_differ(now, self._trainable)} has changed, which "
                "overlap_with_ddp=True does not allow: DDP's buckets and the owners are fixed. Freeze parameters "
                "before you construct DDP and the optimizer."
            )

    def _hide_untouchable(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Take the gradients away from parameters that are not sent: stepping them would set the ranks apart."""
        if all(self._sent):
            return []
        hidden = []
        for parameter, goes in zip(self._parameters(), self._sent, strict=True):
            if not goes and parameter.grad is not None:
                hidden.append((parameter, parameter.grad))
                parameter.grad = None
        return hidden

    def _take_news(self, settings: Sequence[Group], sent: Sequence[bool]) -> None:
        """On a joined rank: take over what live ranks have changed."""
        take_settings(settings, self.param_groups)
        self._also_send(sent)

    def _current_publisher(self) -> Publisher:
        if self._publisher is None or self._publisher.stale():
            self._publisher = Publisher(
                self._team, self._parameters(), self._plan.owners, self._sent, self.parameters_as_bucket_view
            )
        return self._publisher

    def _sync_params(self, watch: Watch | None = None) -> None:
        """Send every owner's parameters to all ranks."""
        if self._overlap_info is not None:
            raise AssertionError(SENT_FROM_BACKWARD)
        self._current_publisher().publish(watch)


def _places_that_differ(now: Sequence[bool], before: Sequence[bool]) -> list[int]:
    return [place for place, (new, old) in enumerate(zip(now, before, strict=True)) if new != old]
