"""Makes what was written last through a power failure."""

from __future__ import annotations

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk, where the platform can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:  # a file system that cannot
        pass
    finally:
        os.close(handle)
