"""Which gradients travel together: a pure, frozen layout of parameters in buckets that proves itself when made."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from numbers import Real

import torch

MIB = 1024 * 1024
DEFAULT_FIRST_BUCKET_BYTES = MIB
DEFAULT_BUCKET_BYTES = 25 * MIB


@dataclass(frozen=True)
class ParameterSpec:
    """What planning needs to know of one managed parameter."""

    index: int  # place in registration order
    name: str
    numel: int
    dtype: torch.dtype
    device: torch.device
    sparse: bool = False  # its gradient is a sparse tensor: it travels alone

    @property
    def bytes(self) -> int:
        return self.numel * self.dtype.itemsize


@dataclass(frozen=True)
class BucketCaps:
    """When a bucket is full. ``sizes_bytes[k]`` closes bucket k of its dtype; the last holds for all further ones."""

    sizes_bytes: tuple[int, ...] = (DEFAULT_FIRST_BUCKET_BYTES, DEFAULT_BUCKET_BYTES)

    @staticmethod
    def of(cap_mib: float | None = None, caps_mib: Sequence[float] | None = None) -> BucketCaps:
        """The caps that the constructor arguments ask for; a size given by the user holds for the first bucket too.

        ValueError for what is not a finite number.
        """
        if caps_mib:
            return BucketCaps(tuple(_bytes_of(cap) for cap in caps_mib))
        return BucketCaps() if cap_mib is None else BucketCaps((_bytes_of(cap_mib),))

    def of_bucket(self, position: int) -> int:
        return self.sizes_bytes[min(position, len(self.sizes_bytes) - 1)]

    @property
    def steady_bytes(self) -> int:
        """The size that all buckets but the first few aim at."""
        return self.sizes_bytes[-1]


def _bytes_of(cap_mib: float) -> int:
    if not isinstance(cap_mib, Real) or not math.isfinite(cap_mib):
        raise ValueError(f"A bucket's size (bucket_cap_mb, bucket_cap_mb_list) is a number of MiB, not {cap_mib!r}.")
    return int(cap_mib * MIB)


UNLIMITED = BucketCaps((2**62,))


@dataclass(frozen=True)
class Slot:
    """One parameter's place in a flat bucket: elements ``offset`` to ``offset + numel``."""

    parameter: int
    name: str
    offset: int
    numel: int


@dataclass(frozen=True)
class BucketSpec:
    """One bucket: gradients of one dtype on one device that are reduced by one collective."""

    index: int
    slots: tuple[Slot, ...]
    dtype: torch.dtype
    device: torch.device
    sparse: bool

    @property
    def numel(self) -> int:
        last = self.slots[-1]
        return last.offset + last.numel

    @property
    def parameters(self) -> tuple[int, ...]:
        return tuple(slot.parameter for slot in self.slots)

    @property
    def names(self) -> list[str]:
        return [slot.name for slot in self.slots]


@dataclass(frozen=True)
class BucketPlan:
    """All buckets, in the order in which their collectives start. The same on every rank."""

    buckets: tuple[BucketSpec, ...]
    parameter_count: int
    #: parameters that are never reduced (DDP-116)
    left_out: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        seen = sorted([*self.order, *self.left_out])
        if seen != list(range(self.parameter_count)):
            raise AssertionError(f"a plan must place each of {self.parameter_count} parameters once, not {seen}")
        for place, bucket in enumerate(self.buckets):
            if bucket.index != place:
                raise AssertionError(f"bucket {bucket.index} stands at place {place} of its plan")
            if bucket.slots[0].offset != 0:
                raise AssertionError(f"bucket {place} does not begin at its beginning")
            if any(a.offset + a.numel != b.offset for a, b in pairwise(bucket.slots)):
                raise AssertionError(f"bucket {place} has a gap or an overlap between its slots")
            if bucket.sparse and len(bucket.slots) != 1:
                raise AssertionError(f"bucket {place} mixes a sparse gradient with others")

    @property
    def order(self) -> list[int]:
        """The parameters that are reduced, in the order in which they travel."""
        return [index for bucket in self.buckets for index in bucket.parameters]


@dataclass
class _OpenBucket:
    """A bucket while it is being planned."""

    members: list[ParameterSpec] = field(default_factory=list)
    bytes: int = 0


def plan_buckets(specs: Sequence[ParameterSpec], order: Iterable[int], caps: BucketCaps) -> BucketPlan:
    """Lay parameters out in the given order; a bucket closes as soon as it holds its cap. Others are left out.

    Parameters of different dtype or device fill different buckets side by side, each kind under the caps from the first
    on. Buckets are numbered in the order in which they can become full, so that none waits in line behind a later one.
    """
    return _plan_of(_filled(specs, order, caps), len(specs))


def first_plan(specs: Sequence[ParameterSpec], caps: BucketCaps, *, will_be_rebuilt: bool) -> BucketPlan:
    """The plan before any backward was seen: the parameters registered last, whose gradients come first, lead.

    Where the buckets will be rebuilt after the first backward anyway, the first iteration uses one bucket for each
    dtype and device (DDP-054). Where they stay, they are filled in the order of registration, so that the first bucket
    to be filled, which as a rule is small, is the last to be reduced: what nobody can overlap is short.
    """
    if will_be_rebuilt:
        return expected_plan(specs, UNLIMITED)
    filled = _filled(specs, range(len(specs)), caps)
    filled.sort(key=lambda members: members[0].index, reverse=True)
    return _plan_of(filled, len(specs))


def expected_plan(specs: Sequence[ParameterSpec], caps: BucketCaps) -> BucketPlan:
    """The plan of a backward in which gradients arrive in the reverse order of registration."""
    return plan_buckets(specs, range(len(specs) - 1, -1, -1), caps)


def _filled(specs: Sequence[ParameterSpec], order: Iterable[int], caps: BucketCaps) -> list[list[ParameterSpec]]:
    """The members of each bucket, in the order in which the buckets become full."""
    open_buckets: dict[tuple[torch.dtype, torch.device], _OpenBucket] = {}
    closed: Counter[tuple[torch.dtype, torch.device]] = Counter()
    full: list[list[ParameterSpec]] = []
    for index in order:
        spec = specs[index]
        if spec.sparse:
            full.append([spec])
            continue
        kind = (spec.dtype, spec.device)
        bucket = open_buckets.setdefault(kind, _OpenBucket())
        bucket.members.append(spec)
        bucket.bytes += spec.bytes
        if bucket.bytes >= caps.of_bucket(closed[kind]):
            full.append(open_buckets.pop(kind).members)
            closed[kind] += 1
    full.extend(bucket.members for bucket in open_buckets.values())
    return full


def _plan_of(full: Sequence[Sequence[ParameterSpec]], parameter_count: int) -> BucketPlan:
    buckets = tuple(_lay_out(index, members) for index, members in enumerate(full))
    placed = {index for bucket in buckets for index in bucket.parameters}
    return BucketPlan(buckets, parameter_count, frozenset(range(parameter_count)) - placed)


def _lay_out(index: int, members: Sequence[ParameterSpec]) -> BucketSpec:
    slots, offset = [], 0
    for member in members:
        slots.append(Slot(member.index, member.name, offset, member.numel))
        offset += member.numel
    return BucketSpec(index, tuple(slots), members[0].dtype, members[0].device, members[0].sparse)


def checked_order(order: list[int], due: set[int], how: str) -> list[int]:
    """An order of parameters that has come from another rank; RuntimeError unless it holds each of those due once."""
    if sorted(order) != sorted(due):
        raise RuntimeError(
            f"The bucket order that {how} does not name each of the {len(due)} parameters once: "
            f"{str(order)[:200]}. Usual cause: a message damaged on its way (by a process group or a network), or "
            "ranks whose collectives do not match. Nothing was laid out anew. JOINERY_STRICT=1 may tell more."
        )
    return order
