"""The parser of every command line: a value that begins with a minus is a value, and the command says what is wrong."""

from __future__ import annotations

import argparse
import re
from typing import Any


class Parser(argparse.ArgumentParser):
    """Takes ``-5m`` and ``-1,2`` for values; argparse takes only plain numbers, and misses an argument otherwise."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._negative_number_matcher = re.compile(r"-\.?\d")
