"""The code of an earlier night, checked out beside tonight's, so that both can be measured on the same night.

The commit comes from a history, which anybody may have written who can add a file to it, and its code is run. So only
a full hash counts, and only of a commit that tonight's code descends from: nothing else was reviewed with it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..judging import JudgedHistory, Series, State

_LIMIT_S = 120.0
_FULL_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class Refused(Exception):
    """A commit whose code is not run; the text says why, after its name."""


def commit_of(judged: JudgedHistory, machine: str, doubtful: Sequence[Series]) -> str:
    """The commit of the first night whose level these series are still compared with; empty if there is none.

    Not the last one's, because a change that could not be told on the night on which it came must not pass for the
    level. Its code must be known, and not be tonight's.
    """
    confirmed = [change for one in doubtful for change in one.changes if change.state is not State.NEW]
    level = max((change.until or change.since for change in confirmed), default="")
    nights = [night for one in judged.machines if one.name == machine for night in one.nights if night.commit]
    clean = [night.commit for night in nights if night.name >= level and not night.commit.endswith("+")]
    return next((commit for commit in clean if commit != nights[-1].commit), "")


@contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Path | None]:
    """The folder in which commands run with the code of ``commit``; None, with a sentence said, if it cannot be had."""
    try:
        inside = _git("rev-parse", "--show-prefix").strip()
        _refuse_foreign(commit)
        _git("worktree", "add", "--detach", "--quiet", str(folder), commit)
    except (OSError, subprocess.SubprocessError, Refused) as error:
        why = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1]
        named = commit[:10] if _FULL_HASH.fullmatch(commit) else repr(commit[:60])
        print(f"nightly: the code of {named} cannot be measured beside tonight's: {why}", file=sys.stderr)
        yield None
        return
    try:
        yield folder / inside
    finally:
        try:
            _git("worktree", "remove", "--force", str(folder))
        except (OSError, subprocess.SubprocessError):
            print(f"nightly: {folder} could not be removed; `git worktree remove --force` does", file=sys.stderr)


def _refuse_foreign(commit: str) -> None:
    """``Refused`` unless ``commit`` is the full hash of a commit that HEAD descends from."""
    if not _FULL_HASH.fullmatch(commit):
        raise Refused("what the history names is no full hash of a commit, and nothing else is checked out")
    try:
        _git("merge-base", "--is-ancestor", commit, "HEAD")
    except subprocess.CalledProcessError as error:
        raise Refused(
            "it is no ancestor of HEAD here, and other code is not run (a shallow clone lacks old commits, too)"
        ) from error
    if _git("rev-parse", "--verify", f"{commit}^{{commit}}").strip() != commit:
        raise Refused("it is the hash of a tag, and only a commit's own is taken")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, timeout=_LIMIT_S, check=True).stdout
