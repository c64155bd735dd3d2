"""Power out of sample: mutants of impl that nobody chose, and how many of them the quick tier kills.

The planted defects (``conformance.defects``) were written beside the checks; a rate of them says little about mistakes
that nobody thought of. Here a mutant is one edit made from the syntax of impl by an operator (``operators``), drawn at
random over its lines (``drawing``), identified by file, function, operator and number::

    python -m conformance power --mutants 200 --seed 7        (or: make power MUTANTS=200 SEED=7)

How it works. impl is loaded anew with one file changed (``altered``), in the worker and in a fork server beside the
one that has torch loaded; the ranks of every check are forked from that, so whatever the mutant touches is as it
would be in the file. Which checks execute which statement is found once per state of the sources, by impl with
marked statements (``marks``, ``reach``). A mutant meets the checks that execute its statement, the cheapest and
closest first, until one fails, hangs, dies or falls over that passes on the sound code (``trial``).

What survives is triaged by hand in ``triage.toml``: equivalent, performance only, accelerator only, or a gap. The rate
(``rate``) is of the mutants that the suite could kill: all but the first three. A survivor without an entry counts
as a gap. Checks are written for gaps; the figure after that comes from a seed that nobody has used.
"""
