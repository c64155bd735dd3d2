"""PowerSGDState: the settings of the PowerSGD hooks and what they remember from one iteration to the next."""

import logging
import random
from typing import Any

import torch
import torch.distributed as dist

from .powersgd_plan import CompressionPlan
from .reduction import Bucket

logger = logging.getLogger("impl.ddp.hooks.powerSGD_hook")


class PowerSGDState:
    """Settings and memory of ``powerSGD_hook`` and ``batched_powerSGD_hook``; one per DDP.

    Args:
        process_group: the ranks to average over; None means the group of the DDP that the hook is registered with.
        matrix_approximation_rank: columns of the low-rank factors; more is more exact and costs more.
        start_powerSGD_iter: iterations of plain averaging before compression starts.
        min_compression_rate: a matrix is compressed only if that makes it smaller by more than this factor.
        use_error_feedback: add what compression lost to the gradient of the next iteration.
        warm_start: start from the last iteration's factor instead of a random one.
        orthogonalization_epsilon: added to the norms that columns are divided by; 0 is safe here.
        random_seed: of the random factors; must be equal on all ranks.
        compression_stats_logging_frequency: iterations between two logged statistics.
        batch_tensors_with_same_shape: compress gradients of equal shape in one batched product.

    Raises:
        ValueError: compression would start before iteration 2 with error feedback or warm start on (COMM-025): DDP
            rebuilds its buckets after the first iteration, which invalidates what was remembered. Also for a rank of
            the approximation below 1.
    """

    __slots__ = (
        "batch_tensors_with_same_shape",
        "compression_stats_logging_frequency",
        "error_dict",
        "iter",
        "matrix_approximation_rank",
        "min_compression_rate",
        "next_stats_report",
        "orthogonalization_epsilon",
        "p_memory_dict",
        "process_group",
        "q_memory_dict",
        "rng",
        "start_powerSGD_iter",
        "total_numel_after_compression",
        "total_numel_before_compression",
        "use_error_feedback",
        "warm_start",
    )

    # what the hooks remember, each by bucket index and written by the hooks only
    error_dict: dict[int, torch.Tensor]  # [bucket numel] what this rank has failed to send so far
    p_memory_dict: dict[int, torch.Tensor]  # [p_numel] the factors P, reused as scratch memory
    q_memory_dict: dict[int, torch.Tensor]  # [q_numel] the averaged factors Q of the last iteration
    iter: int  # finished iterations; equal on all ranks

    def __init__(
        self,
        process_group: dist.ProcessGroup | None,
        matrix_approximation_rank: int = 1,
        start_powerSGD_iter: int = 1000,
        min_compression_rate: float = 2,
        use_error_feedback: bool = True,
        warm_start: bool = True,
        orthogonalization_epsilon: float = 0,
        random_seed: int = 0,
        compression_stats_logging_frequency: int = 10000,
        batch_tensors_with_same_shape: bool = False,
    ) -> None:
        if matrix_approximation_rank < 1:
            raise ValueError(f"matrix_approximation_rank must be at least 1, got {matrix_approximation_rank}.")
        if (use_error_feedback or warm_start) and start_powerSGD_iter <= 1:
            raise ValueError(
                "Expect `start_powerSGD_iter` > 1 if `use_error_feedback` or `warm_start` is enabled, because PowerSGD "
                f"can only be applied after the first two iterations in DDP. It is {start_powerSGD_iter}; buckets are "
                "rebuilt after the first iteration, and tensors remembered from before do not fit them. Start at "
                "iteration 2 or later, or turn both off."
            )
        self.process_group = process_group
        self.matrix_approximation_rank = matrix_approximation_rank
        self.start_powerSGD_iter = start_powerSGD_iter
        self.min_compression_rate = min_compression_rate
        self.use_error_feedback = use_error_feedback
        self.warm_start = warm_start
        self.orthogonalization_epsilon = orthogonalization_epsilon
        self.compression_stats_logging_frequency = max(1, compression_stats_logging_frequency)
        self.batch_tensors_with_same_shape = batch_tensors_with_same_shape
        self.rng = random.Random(random_seed)
        self.error_dict, self.p_memory_dict, self.q_memory_dict = {}, {}, {}
        self.iter = 0
        self.total_numel_before_compression = 0
        self.total_numel_after_compression = 0
        self.next_stats_report = 0

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the group, which cannot be saved (COMM-027)."""
        logger.warning("PowerSGDState: the process group is not saved with the rest of the state.")
        return {slot: getattr(self, slot) for slot in self.__slots__ if slot != "process_group"}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        """Everything that was saved, on the default group (none yet if there is no default group yet)."""
        for slot, value in saved.items():
            setattr(self, slot, value)
        self.process_group = dist.group.WORLD
        logger.warning(
            "PowerSGDState: the process group was not saved and is now the default group. "
            "Assign state.process_group if DistributedDataParallel runs on another one."
        )

    def maybe_increase_iter(self, bucket: Bucket) -> None:
        """Count an iteration when its last bucket comes by."""
        if bucket.is_last():
            self.iter += 1
            if self.iter == self.start_powerSGD_iter:
                logger.info("PowerSGD compression starts after %d iterations.", self.iter)

    def compression_stats(self) -> tuple[float, int, int]:
        """Compression rate (0 before any compression), elements before, and elements after compression."""
        before, after = self.total_numel_before_compression, self.total_numel_after_compression
        return (before / after if after else 0, before, after)

    def count(self, plan: CompressionPlan, bucket: Bucket) -> None:
        """Add a bucket to the statistics; log them when they are due."""
        self.total_numel_before_compression += plan.numel_before
        self.total_numel_after_compression += plan.numel_after
        if bucket.is_last() and self.iter >= self.next_stats_report:
            logger.info("PowerSGD at iteration %d: rate %.2f, elements %d -> %d", self.iter, *self.compression_stats())
            self.next_stats_report = self.iter + self.compression_stats_logging_frequency

    def remembered(self, memory: dict[int, torch.Tensor], index: int, like: torch.Tensor, numel: int) -> torch.Tensor:
        """The flat tensor that ``memory`` holds for a bucket, if it still fits; else zeros, which it then holds."""
        found = memory.get(index)
        if found is None or found.numel() != numel or found.dtype != like.dtype or found.device != like.device:
            found = memory[index] = torch.zeros(numel, dtype=like.dtype, device=like.device)
        return found

    def fill_randomly(self, tensor: torch.Tensor) -> None:
        """Standard normal values, the same on every rank and on every kind of device."""
        generator = torch.Generator().manual_seed(self.rng.randrange(2**31))
        tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=torch.float32, device="cpu"))
