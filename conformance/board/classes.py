"""What the known breaks of a column are: ``classed/<column>.toml``, put on its record when the page is made.

The file holds deviations (their form: conformance/deviations/__init__.py) whose clause and check may be several
patterns, separated by commas, and whose reason begins with what the break is:

    by design:    the implementation documents that it does not promise this; the link leads there
    not offered:  a service of torch's around the guarantee that it does not have and nowhere claims to have
    fault:        it claims this, or loses numbers without a word; the link, if any, leads to the report
    torch's fault: the same, done by a class of torch's that does the work within; counted, and told apart

So a break that is classed, or classed anew, needs no new run. The first two are no broken cell anywhere on the board:
a column's own page shows them as unsupported, with the reason. A witness that fits what any check may say names its
checks, too (``says_little``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..deviations import Deviation, built_in, load
from ..pages.header import entry
from ..pages.record_book import Source
from ..results import Outcome, Result
from .columns import HERE, Column

BY_DESIGN, NOT_OFFERED, FAULT, OF_TORCH = "by design: ", "not offered: ", "fault: ", "torch's fault: "
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
    results = tuple(classed(each, listed) if each.unlisted else each for each in source.results)
    deviations = {**source.header.get("deviations", {}), **{name: [*map(entry, listed)] for name in source.subjects}}
    return replace(source, results=results, header={**source.header, "deviations": deviations})


def classed(result: Result, listed: Sequence[Deviation]) -> Result:
    """The same with what is known of it; what is no fault has no answer, and says why."""
    known = next((each for each in listed if each.explains(result)), None)
    if known is None or not known.reason.startswith((BY_DESIGN, NOT_OFFERED)):
        return result.excused(known.reason) if known else result
    said = f"{known.reason}{f' ({known.link})' if known.link else ''}; seen: {result.witness}"
    return replace(result, outcome=Outcome.UNSUPPORTED, witness=said, deviation=known.reason)


def word(results: Iterable[Result]) -> str:
    """What a clause without a plain answer is: any fault counts, then what is documented."""
    found = {_class(each) for each in results if each.broken or each.outcome is Outcome.UNSUPPORTED}
    return next(each for each in ("broken", "by design", "unsupported") if each in found)


def inherited(column: Column, results: Iterable[Result]) -> set[str]:
    """The clauses that the column breaks by nothing but faults of torch's classes, which do its work."""
    if not column.like:
        return set()
    listed = {each.reason for each in built_in(column.like)}
    broken = [each for each in results if each.broken]
    own = [each for each in broken if each.deviation not in listed and not each.deviation.startswith(OF_TORCH)]
    return {each.clause for each in broken} - {each.clause for each in own}


def unclassed(source: Source) -> list[str]:
    """The clauses with a break that nobody has looked at."""
    return list(dict.fromkeys(each.clause for each in source.results if each.unlisted))


def says_little(one: Deviation) -> bool:
    """Whether the witness of an entry that names no check would fit what any check may say."""
    return one.check == "*" and any(re.search(one.witness, text) for text in _ANYTHING)


def _class(result: Result) -> str:
    if result.broken:
        return "broken"
    return "by design" if result.deviation.startswith(BY_DESIGN) else "unsupported"
