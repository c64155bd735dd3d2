"""What every command promises of bad input: status 2, a sentence with the remedy, no traceback, no file touched."""

import hashlib
import shlex


def files(place):
    """Every file under a folder with a digest of what it holds; folders without one."""
    found = [path for path in place.rglob("*") if "__pycache__" not in path.parts]
    return {
        str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in found
    }


def refused(main, line, says, place, capsys):
    """Run a command line in ``place`` and see that it keeps the promise; returns what it said."""
    before = files(place)
    try:
        status = main(shlex.split(line))
    except SystemExit as end:  # argparse
        status = end.code
    out, err = capsys.readouterr()
    assert status == 2, (status, err)
    assert says in err, err
    assert "Traceback" not in err
    assert out == ""
    sentences = err.splitlines() if not err.startswith("usage:") else err.splitlines()[-1:]
    assert len(sentences) <= 3, err
    assert files(place) == before
    return err
