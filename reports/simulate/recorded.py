"""Noise as it was measured, from the published records: for judging the judgement on what nobody made up.

The repository holds no history of real nights yet, so a night is made of rounds: the rounds of one run of
``published/impl-vs-torch-*.jsonl``, each the ratio of our time to torch's in the same round. They tell how ratios
scatter and follow each other within a run; what another start of the ranks adds is not in them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..judging.model import Basis
from ..judging.nights import measured
from ..records import read

PUBLISHED = Path(__file__).parent.parent / "published"
_LEAST = 20  # rounds of a series that is used


def noises(folder: Path = PUBLISHED) -> tuple[tuple[float, ...], ...]:
    """The logarithms of each series' ratios, in order, with mean 0 and variance 1; empty if there is no such record."""
    found = []
    for path in sorted(folder.glob("impl-vs-torch-*.jsonl"))[-1:]:
        for identity, one in measured([read(path)], "", "torch").items():
            if identity.basis is Basis.RATIO and len(one.blocks) >= _LEAST:
                values = np.log(one.blocks)
                if values.std() > 0:
                    found.append(tuple(((values - values.mean()) / values.std()).tolist()))
    return tuple(found)
