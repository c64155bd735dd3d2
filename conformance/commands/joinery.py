"""The console script ``joinery``: one command in front of the suite, the harness and the reports."""

from __future__ import annotations

import runpy
import sys

#: what the first word stands for: a package that has a command line, and the words that it is given first
_PACKAGES = {
    "conformance": ("conformance",),
    "perf": ("perf",),
    "reports": ("reports",),
    "nightly": ("reports", "nightly"),
    "dashboard": ("reports", "dashboard"),
}

_USAGE = """usage: joinery COMMAND ...

  conformance   judge implementations            joinery conformance run --subject impl,torch
  perf          measure sweeps                   joinery perf run --sweep default --world 8
  nightly       judge and measure one night      joinery nightly --history history
  dashboard     the page of a history            joinery dashboard history
  reports       everything about histories       joinery reports --help

Each command explains itself: joinery COMMAND --help."""


def main() -> None:
    """Run ``python -m PACKAGE`` for the command that is named; exits with its status, or 2 for an unknown one."""
    word, *rest = sys.argv[1:] or ["--help"]
    if word in ("-h", "--help"):
        print(_USAGE)
        sys.exit(0)
    if word not in _PACKAGES:
        print(f"joinery: there is no command {word!r}.\n\n{_USAGE}", file=sys.stderr)
        sys.exit(2)
    package, *first = _PACKAGES[word]
    sys.argv = [f"joinery {word}", *first, *rest]
    runpy.run_module(package, run_name="__main__", alter_sys=True)
