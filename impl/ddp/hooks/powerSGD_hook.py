# ruff: noqa: N999 -- torch calls the module so
"""PowerSGD: hooks that send low-rank factors instead of gradients (Vogels, Karimireddy, Jaggi, arXiv:1905.13727).

For matrices M [b, n, m] of a bucket, and Q [b, m, r] equal on all ranks:

    P = M Q                  1st message, small:  [ P ]                  the hook waits for it
    P orthonormal
    Q = M^T P                2nd message:         [ Q | the rest ]       travels while backward goes on
    M = P Q^T                when it has come

The rest (vectors, matrices that would hardly shrink) is averaged exactly; it rides in the second message, which nobody
waits for. Both messages leave from the thread that runs backward, in the order of the buckets, so that no callback ever
communicates. The error that a rank remembers is its own: M - P (its own Q)^T, as in the paper's Algorithm 2.
"""

from collections.abc import Sequence

import torch

from ...comm.flat import views_like
from ...comm.pending import Pending
from .default_hooks import allreduce_hook
from .powersgd_plan import CompressionPlan, MatrixGroup, orthogonalize, plan_layers, plan_square, split
from .powersgd_state import PowerSGDState, logger
from .reduction import (
    GradBucket,
    TensorFuture,
    after,
    aside,
    divisor_of,
    finish_mean,
    hold_for_current_stream,
    label_of,
    start_mean,
    team_of,
    watch_of,
    without_autocast,
)

__all__ = ["PowerSGDState", "batched_powerSGD_hook", "logger", "powerSGD_hook"]


def powerSGD_hook(state: PowerSGDState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average the bucket by PowerSGD, parameter by parameter; plain before ``state.start_powerSGD_iter`` (COMM-026)."""
    if state.iter < state.start_powerSGD_iter or bucket.buffer().is_sparse:
        return _plain(state, bucket)
    gradients = bucket.gradients()
    plan = plan_layers(
        tuple(tuple(gradient.shape) for gradient in gradients),
        state.matrix_approximation_rank,
        state.min_compression_rate,
        state.batch_tensors_with_same_shape,
    )
    return _compressed(state, bucket, plan, gradients)


def batched_powerSGD_hook(state: PowerSGDState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average the bucket by PowerSGD on the whole bucket as one square matrix: faster and much less exact."""
    if state.iter < state.start_powerSGD_iter or bucket.buffer().is_sparse:
        return _plain(state, bucket)
    buffer = bucket.buffer()
    return _compressed(state, bucket, plan_square(buffer.numel(), state.matrix_approximation_rank), [buffer])


def _plain(state: PowerSGDState, bucket: GradBucket) -> TensorFuture:
    state.maybe_increase_iter(bucket)
    return allreduce_hook(state.process_group, bucket)  # type: ignore[arg-type]


def _compressed(
    state: PowerSGDState, bucket: GradBucket, plan: CompressionPlan, gradients: list[torch.Tensor]
) -> TensorFuture:
    """``gradients`` are views of the bucket's buffer, and all there is in it."""
    with aside(bucket.buffer().device), without_autocast(bucket.buffer()):
        exchange = _Exchange(state, bucket, plan, gradients)
        exchange.add_error()
        exchange.send_p()
        exchange.remember_error()
        pending = exchange.send_q_and_rest()
    state.count(plan, bucket)
    state.maybe_increase_iter(bucket)
    return after(pending, exchange.decompress)


class _Exchange:
    """One bucket's way through the two messages; lives until its future is complete."""

    ps: list[torch.Tensor]  # [b, n, r] by group; views of p_flat
    qs: list[torch.Tensor]  # [b, m, r] by group; views of the second message
    rest: list[torch.Tensor]  # views of the second message, shaped like the gradients that are not compressed

    def __init__(
        self, state: PowerSGDState, bucket: GradBucket, plan: CompressionPlan, gradients: list[torch.Tensor]
    ) -> None:
        self.state, self.bucket, self.plan, self.gradients = state, bucket, plan, gradients
        self.buffer = bucket.buffer()
        self.team = team_of(state.process_group, bucket)
        self.divisor = divisor_of(self.team, bucket)
        self.p_flat, self.message = map(self.buffer.new_empty, (plan.p_numel, plan.q_numel + plan.plain_numel))
        self.ps = split(self.p_flat, [group.p_shape for group in plan.groups])
        self.qs = split(self.message, [group.q_shape for group in plan.groups])
        plain_shapes = [tuple(gradients[position].shape) for position in plan.plain]
        self.rest = split(self.message[plan.q_numel :], plain_shapes)
        self.error: torch.Tensor | None = None  # [bucket numel] the state's memory; None without error feedback

    def add_error(self) -> None:
        """Add what was lost before to the bucket, and only then look at it as matrices."""
        if self.state.use_error_feedback:
            self.error = self.state.error_of(self.bucket)
            self.buffer.add_(self.error)
        self.matrices = [_matrices(group, self.gradients) for group in self.plan.groups]

    def send_p(self) -> None:
        """Add up P = M Q over the ranks, wait for it, and replace each Q by this rank's M^T P.

        Of P only the directions count, so the sum serves as well as the average.
        """
        self._start_factors()
        if not self.plan.groups:
            return
        for m, q, p in zip(self.matrices, self.qs, self.ps, strict=True):
            torch.bmm(m, q, out=p)
        pending = start_mean(self.team, self.divisor, self.p_flat, label_of("PowerSGD P", self.bucket))
        pending.wait(watch_of(self.bucket))
        for m, q, p in zip(self.matrices, self.qs, self.ps, strict=True):
            orthogonalize(p, self.state.orthogonalization_epsilon)
            torch.bmm(m.transpose(1, 2), p, out=q)

    def _start_factors(self) -> None:
        """Fill each Q: with the last iteration's if there is one that fits, else randomly; orthonormal either way."""
        q_flat = self.message[: self.plan.q_numel]
        last = self.state.factors_of(self.bucket, self.plan) if self.state.warm_start else None
        if last is not None:
            q_flat.copy_(last)
        else:
            self.state.fill_randomly(self.qs)
        for q in self.qs:
            orthogonalize(q, self.state.orthogonalization_epsilon)

    def remember_error(self) -> None:
        """What this rank's own factors do not say of its bucket; nothing of the rest is lost."""
        if self.error is None:
            return
        self.error.zero_()
        lost = views_like(self.gradients, self.buffer, self.error)
        for group, m, p, q in zip(self.plan.groups, self.matrices, self.ps, self.qs, strict=True):
            _write(group, lost, m - torch.bmm(p, q.transpose(1, 2)))
        _forget_damage(self.error)

    def send_q_and_rest(self) -> Pending:
        for slot, position in zip(self.rest, self.plan.plain, strict=True):
            slot.copy_(self.gradients[position])
        return start_mean(self.team, self.divisor, self.message, label_of("PowerSGD Q and rest", self.bucket))

    def decompress(self) -> torch.Tensor:
        """The bucket as everybody's factors say it. Runs on the backend's thread."""
        hold_for_current_stream(self.p_flat, self.message)
        finish_mean(self.message, self.divisor)
        with without_autocast(self.buffer):
            for group, p, q in zip(self.plan.groups, self.ps, self.qs, strict=True):
                _write(group, self.gradients, torch.bmm(p, q.transpose(1, 2)))
        for slot, position in zip(self.rest, self.plan.plain, strict=True):
            self.gradients[position].copy_(slot)
        if self.state.warm_start:
            kept = self.state.q_memory_dict[self.bucket.index()] = self.message[: self.plan.q_numel].clone()
            _forget_damage(kept)
        return self.buffer


def _matrices(group: MatrixGroup, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """The group's gradients as [b, n, m]; a view for a single contiguous one, filled up with zeros if too short."""
    numel = group.rows * group.columns
    flat = [gradients[member].reshape(-1) for member in group.members]
    if flat[0].numel() < numel:  # the square one
        flat = [torch.nn.functional.pad(flat[0], (0, numel - flat[0].numel()))]
    whole = flat[0] if len(flat) == 1 else torch.stack(flat)
    return whole.view(len(group.members), group.rows, group.columns)


def _forget_damage(memory: torch.Tensor) -> None:
    """A gradient that overflows is seen in its own iteration, which a loss scaler skips, and in none after it."""
    memory.nan_to_num_(0, 0, 0)


def _write(group: MatrixGroup, targets: Sequence[torch.Tensor], matrices: torch.Tensor) -> None:
    """Write [b, n, m] back to where ``_matrices`` read it."""
    for member, matrix in zip(group.members, matrices, strict=True):
        target = targets[member]
        target.copy_(matrix.reshape(-1)[: target.numel()].view(target.shape))
