"""Several small counts in as few whole numbers as hold them, so that adding the numbers adds the counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

_BITS = 62  # of each word, an int64 that stays positive


@dataclass(frozen=True)
class Words:
    """``widths``: the bits of each count. No sum over the ranks may need more."""

    widths: tuple[int, ...]

    def pack(self, counts: Sequence[int]) -> list[int]:
        """The words that hold these counts."""
        words = [0] * self.number
        for count, (word, shift, _) in zip(counts, self._places, strict=True):
            words[word] |= count << shift
        return words

    def unpack(self, words: Sequence[int]) -> list[int]:
        """The counts that these words, or sums of such, hold."""
        return [(words[word] >> shift) & mask for word, shift, mask in self._places]

    @property
    def number(self) -> int:
        """How many words there are."""
        return self._places[-1][0] + 1

    @cached_property
    def _places(self) -> list[tuple[int, int, int]]:
        """Word, shift and mask of each count; none lies across two words."""
        places = []
        word = used = 0
        for width in self.widths:
            if used + width > _BITS:
                word, used = word + 1, 0
            places.append((word, used, (1 << width) - 1))
            used += width
        return places
