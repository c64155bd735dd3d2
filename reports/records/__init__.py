"""Record files: JSON lines with a header and a footer; one without its footer is invalid, and the reader says so.

    with Writer(path, header) as writer:
        writer.write({"clause": "JOIN-001", ...})
        writer.close({"counts": {...}, "exit_status": 0})
    record = read(path)                  # record.header, record.rows, record.footer
"""

from .identity import identity
from .reader import RecordFile, read
from .schema import SCHEMA_VERSION, RecordError, register
from .writer import Writer

__all__ = ["SCHEMA_VERSION", "RecordError", "RecordFile", "Writer", "identity", "read", "register"]
