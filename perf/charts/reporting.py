"""Says where charts are, or why there is none."""

from __future__ import annotations

import os
from collections.abc import Iterable

from . import Chart


def report(charts: Iterable[Chart]) -> None:
    """Say of each chart where it is, or why there is none."""
    for chart in charts:
        if chart.files:
            names = " ".join(os.path.relpath(file) for file in chart.files)
            print(f"chart: {names}")
        else:
            print(f"no chart {chart.name}: {chart.reason}")
