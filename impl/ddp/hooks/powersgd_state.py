"""PowerSGDState: the settings of the PowerSGD hooks and what they remember from one iteration to the next."""

import logging
import random
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from .powersgd_plan import CompressionPlan
from .reduction import GradBucket

logger = logging.getLogger("impl.ddp.hooks.powerSGD_hook")

#: what a parameter is known by, in another process too: its name, or where torch's bucket tells none its place there;
#: a bucket that is compressed as a whole, by all of them
Name = str | tuple[Any, ...]
#: size, strides and offset of a parameter's part of a flat tensor
Part = tuple[torch.Size, tuple[int, ...], int]
Parts = dict[Name, Part]


class _ByParameter:
    """Whose memory lies where, for DDP may distribute parameters over its buckets anew: another group, a cast, a saved
    state in another process. What is remembered belongs to parameters, and moves with them."""

    def __init__(self) -> None:
        self._parts: dict[int, Parts] = {}  # by bucket index
        #: that of parameters which no bucket has brought again since then
        self._apart: dict[Name, torch.Tensor] = {}

    def remembered(
        self, memory: dict[int, torch.Tensor], bucket: GradBucket, numel: int, parts: Parts
    ) -> tuple[torch.Tensor, bool]:
        """The flat tensor that ``memory`` holds for a bucket, (numel,), and whether all parameters have something in
        it; who has nothing gets zeros."""
        index, like = bucket.index(), bucket.buffer()
        found, known = memory.get(index), self._parts
        if found is not None and _fits(found, like, numel) and known.get(index, parts) == parts:
            known[index] = parts
            return found, True
        if index in known:
            for place, former in known.items():
                if place in memory:  # which the program may have cleared
                    self._apart |= {name: memory[place].as_strided(*part) for name, part in former.items()}
            known.clear()
            memory.clear()
        flat = memory[index] = torch.zeros(numel, dtype=like.dtype, device=like.device)
        known[index] = parts
        there = {name: self._apart.pop(name) for name in parts if name in self._apart}
        fitting = [name for name, kept in there.items() if kept.shape == parts[name][0]]
        for name in fitting:
            flat.as_strided(*parts[name]).copy_(there[name])
        return flat, 0 < len(fitting) == len(parts)


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
        random_seed: of the random factors, 0 to 2**32 - 1; must be equal on all ranks. The same seed gives the factors
            that torch starts with.
        compression_stats_logging_frequency: iterations between two logged statistics.
        batch_tensors_with_same_shape: compress gradients of equal shape in one batched product.

    Raises:
        ValueError: compression would start before iteration 2 with error feedback or warm start on (COMM-025): DDP
            rebuilds its buckets after the first iteration, which invalidates what was remembered. Also for a rank of
            the approximation below 1.
    """

    __slots__ = (
        "_errors",
        "_factors",
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
    p_memory_dict: dict[int, torch.Tensor]  # a name of torch's: empty, since no factors P are kept
    q_memory_dict: dict[int, torch.Tensor]  # [q_numel] the averaged factors Q of the last iteration
    #: whose errors and whose factors Q lie where
    _errors: _ByParameter
    _factors: _ByParameter
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
        if not _is_whole(matrix_approximation_rank) or matrix_approximation_rank < 1:
            raise ValueError(
                f"matrix_approximation_rank must be a whole number of at least 1, not {matrix_approximation_rank!r}."
            )
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
        self.rng = mersenne_twister(random_seed)
        self.error_dict, self.p_memory_dict, self.q_memory_dict = {}, {}, {}
        self._errors, self._factors = _ByParameter(), _ByParameter()
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
        self._errors, self._factors = _ByParameter(), _ByParameter()  # which older versions did not save
        for slot in saved.keys() & {*self.__slots__}:
            setattr(self, slot, saved[slot])
        self.process_group = dist.group.WORLD
        logger.warning(
            "PowerSGDState: the process group was not saved and is now the default group. "
            "Assign state.process_group if DistributedDataParallel runs on another one."
        )

    def maybe_increase_iter(self, bucket: GradBucket) -> None:
        """Count an iteration when its last bucket comes by."""
        if bucket.is_last():
            self.iter += 1
            if self.iter == self.start_powerSGD_iter:
                logger.info("PowerSGD compression starts after %d iterations.", self.iter)

    def compression_stats(self) -> tuple[float, int, int]:
        """Compression rate (0 before any compression), elements before, and elements after compression."""
        before, after = self.total_numel_before_compression, self.total_numel_after_compression
        return (before / after if after else 0, before, after)

    def count(self, plan: CompressionPlan, bucket: GradBucket) -> None:
        """Add a bucket to the statistics; log them when they are due."""
        self.total_numel_before_compression += plan.numel_before
        self.total_numel_after_compression += plan.numel_after
        if bucket.is_last() and self.iter >= self.next_stats_report:
            logger.info("PowerSGD at iteration %d: rate %.2f, elements %d -> %d", self.iter, *self.compression_stats())
            self.next_stats_report = self.iter + self.compression_stats_logging_frequency

    def factors_of(self, bucket: GradBucket, plan: CompressionPlan) -> torch.Tensor | None:
        """The last factors Q of all matrices of the bucket: (q_numel,); None where some matrix has none."""
        parts = _factor_parts_of(bucket, plan)
        factors, all_known = self._factors.remembered(self.q_memory_dict, bucket, plan.q_numel, parts)
        return factors if all_known else None

    def error_of(self, bucket: GradBucket) -> torch.Tensor:
        """What this rank has failed to send of this bucket so far: (bucket numel,), zeros to begin with."""
        return self._errors.remembered(self.error_dict, bucket, bucket.buffer().numel(), _parts_of(bucket))[0]

    def fill_randomly(self, tensors: Sequence[torch.Tensor]) -> None:
        """Standard normal values, the same on every rank and on every kind of device; one seed for them all."""
        generator = torch.Generator().manual_seed(below(self.rng, _SEEDS))
        for tensor in tensors:
            tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype, device="cpu"))


def _fits(tensor: torch.Tensor, like: torch.Tensor, numel: int) -> bool:
    return tensor.numel() == numel and tensor.dtype == like.dtype and tensor.device == like.device


def _names_of(bucket: GradBucket) -> list[Name]:
    if hasattr(bucket, "names"):
        return bucket.names()  # type: ignore[no-any-return]
    return [(bucket.index(), place) for place in range(len(bucket.parameters()))]


def _factor_parts_of(bucket: GradBucket, plan: CompressionPlan) -> Parts:
    names, parts, offset = _names_of(bucket), Parts(), 0
    if plan.positions != len(names):
        names = [tuple(names)]
    for group in plan.groups:
        for member in group.members:
            parts[names[member]] = torch.Size((group.columns, group.rank)), (group.rank, 1), offset
            offset += group.columns * group.rank
    return parts


def _parts_of(bucket: GradBucket) -> Parts:
    start = bucket.buffer().storage_offset()
    views = zip(_names_of(bucket), bucket.gradients(), strict=True)
    return {name: (view.size(), view.stride(), int(view.storage_offset() - start)) for name, view in views}


_SEEDS = 1_000_000_000
_WORDS = 624  # of the generator's state


def mersenne_twister(seed: int) -> random.Random:
    """MT19937 started by one word, as Matsumoto and Nishimura's ``init_genrand`` and NumPy's ``RandomState`` start it.

    Python starts the same generator in another way.
    """
    if not _is_whole(seed) or not 0 <= seed < 2**32:
        raise ValueError(f"random_seed must be a whole number between 0 and 2**32 - 1, not {seed!r}.")
    words = [seed]
    for place in range(1, _WORDS):
        words.append((1812433253 * (words[-1] ^ (words[-1] >> 30)) + place) % 2**32)
    generator = random.Random()
    generator.setstate((3, (*words, _WORDS), None))
    return generator


def _is_whole(number: object) -> bool:
    return hasattr(type(number), "__index__")


def below(generator: random.Random, limit: int) -> int:
    """A number below ``limit``: the first word that is one once its unneeded upper bits are cut off."""
    mask = (1 << (limit - 1).bit_length()) - 1
    while (number := generator.getrandbits(32) & mask) >= limit:
        pass
    return number
