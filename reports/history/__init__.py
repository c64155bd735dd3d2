"""The history: a folder of plain files, one folder for each night of each machine. See ``layout``."""

from .layout import hardware, machine_name
from .power import latest_power
from .scan import KINDS, Found, LeftOut, Note, StoredNight, scan
from .store import HistoryError, add_file, add_night, add_note, named, opened

__all__ = [
    "KINDS", "Found", "HistoryError", "LeftOut", "Note", "StoredNight", "add_file", "add_night", "add_note", "hardware",
    "latest_power", "machine_name", "named", "opened", "scan",
]  # fmt: skip
