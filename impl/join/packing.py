"""Several small counts in as few whole numbers as hold them, so that adding the numbers adds the counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

_BITS = 62  # of each number, an int64 that stays positive


@dataclass(frozen=True)
class Packing:
    """``widths``: the bits of each count. No sum over the ranks may need more."""

    widths: tuple[int, ...]

    def pack(self, counts: Sequence[int]) -> list[int]:
        """The numbers that hold these counts."""
        packed = [0] * self.size
        for count, (element, shift, _) in zip(counts, self._places, strict=True):
            packed[element] |= count << shift
        return packed

    def unpack(self, packed: Sequence[int]) -> list[int]:
        """The counts that these numbers, or sums of such, hold."""
        return [(packed[element] >> shift) & mask for element, shift, mask in self._places]

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return self._places[-1][0] + 1

    @cached_property
    def _places(self) -> list[tuple[int, int, int]]:
        """Element, shift and mask of each count; none lies across two elements."""
        places = []
        element = used = 0
        for width in self.widths:
            if used + width > _BITS:
                element, used = element + 1, 0
            places.append((element, used, (1 << width) - 1))
            used += width
        return places
