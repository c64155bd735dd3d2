"""``python -m conformance page``: one page from one or more records, of one machine or of several."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from ..bad_input import BadInput
from ..pages.write import write


def page(given: Namespace) -> int:
    """Read the records, write the page; records that are not whole are named and left out."""
    out = Path(given.out)
    try:
        made, damaged = write([Path(each) for each in given.records], out)
    except OSError as error:
        raise BadInput(f"cannot write into {out}: {error.strerror}; choose another folder with --out") from error
    for sentence in damaged:
        print(f"conformance: left out: {sentence}", file=sys.stderr)
    print(" · ".join(map(str, made)))
    return 0
