"""What the known breaks of a column are: ``classed/<column>.toml``, put on its record when the page is made.

The file holds deviations (their form: conformance/deviations/__init__.py) whose clause and check may be several
patterns, separated by commas, and whose reason begins with what the break is:

    by design:    the implementation documents that it does not promise this; the link leads there
    not offered:  a service of torch's around the guarantee that it does not have and nowhere claims to have
    fault:        it claims this, or loses numbers without a word; the link, if any, leads to the report

So a break that is classed, or classed anew, needs no new run. A witness that fits what any check may say names its
checks, too (``says_little``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..deviations import Deviation, built_in, excuse, load
from ..pages.header import entry
from ..pages.record_book import Source
from ..results import BROKEN, Result
from .columns import HERE, Column

BY_DESIGN, NOT_OFFERED, FAULT = "by design: ", "not offered: ", "fault: "
FOLDER = HERE / "classed"
#: What a check may say of any difference: a pattern that fits one of these tells no break from another.
_ANYTHING = (
    "assert [[1.0, 2.0]] == [[2.0, 1.0]]", "assert [[(1.0, True)]] == [[(2.0, True)]]",
    "assert {'a': [1.0]} == {'a': [2.0]}", "assert [{'a': [1.0]}] == [{'a': [2.0]}]",
    "assert [[{'a': 1}]] == [[{'a': 2}]]", "assert (1, 2) == (2, 1)", "assert [(1, 2)] == [(2, 1)]",
    "assert [None] == [2]", "assert None is not None", "assert False", "None", "rank 0", "rank 0, iteration 0",
    "rank 0, iteration 0, schedule (3, 3)", "rank 0 was not refused", "ranks 0, 1 raised RuntimeError",
    "rank 0 hung; rank 1 finished",
)  # fmt: skip


def of(column: Column) -> tuple[Deviation, ...]:
    """What is known of a column's breaks: its own file first, then torch's list for a column that is torch's within."""
    path = FOLDER / f"{column.name}.toml"
    own = load(path).deviations if path.is_file() else ()
    each = [
        replace(one, clause=clause.strip(), check=check.strip())
        for one in own
        for clause in one.clause.split(",")
        for check in one.check.split(",")
    ]
    return (*each, *(built_in(column.like) if column.like else ()))


def applied(source: Source, known: Sequence[Deviation]) -> Source:
    """The same record with every break explained that one of these explains; what the run knew stays."""
    if not known:
        return source
    torch = str(source.header["versions"].get("torch", ""))
    listed = [each for each in known if each.holds_for(torch)]
    results = tuple(excuse(each, listed) if each.unlisted else each for each in source.results)
    told = {**source.header.get("deviations", {}), **{name: [*map(entry, listed)] for name in source.subjects}}
    return replace(source, results=results, header={**source.header, "deviations": told})


def word(results: Iterable[Result]) -> str:
    """What the breaks of one clause are together: any fault counts, then what is documented."""
    broken = Counter(_class(each) for each in results if each.outcome in BROKEN)
    return next(found for found in ("broken", "by design", "unsupported") if broken[found])


def unclassed(source: Source) -> list[str]:
    """The clauses with a break that nobody has looked at."""
    return list(dict.fromkeys(each.clause for each in source.results if each.unlisted))


def says_little(one: Deviation) -> bool:
    """Whether the witness of an entry that names no check would fit what any check may say."""
    return one.check == "*" and any(re.search(one.witness, text) for text in _ANYTHING)


def _class(result: Result) -> str:
    if result.deviation.startswith(BY_DESIGN):
        return "by design"
    return "unsupported" if result.deviation.startswith(NOT_OFFERED) else "broken"
