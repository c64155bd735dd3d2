"""Planted defects: wrong-on-purpose variants of our own implementation, which the suite must catch.

A suite that lets everything pass looks exactly like one that finds nothing wrong. So each function below is a mistake
that an implementer may well make, and names the clauses whose checks must each notice it::

    python -m conformance defects --select 'ddp/*'        (or: make defects SELECT='ddp/*')

A defect is a function in ``<area>/<topic>.py`` (areas: join, ddp_join, ddp, comm, zero, overlap)::

    @defect("DDP-122", worlds=(2,))       EACH clause must catch it; worlds: optional, the fewest ranks that show it
    def delayed_gradients_one_by_one() -> None:
        \"""Delayed gradients travel one by one.\"""      the mistake, in one sentence
        edit("range(len(specs)), UNLIMITED)", "range(len(specs)), ONE_BY_ONE)")

``planting.edit`` changes a piece of one function's source, wherever in impl that function stands; ``planting.swap``
replaces an attribute and ``override`` an inherited one. They refuse, with a sentence, what is not there: a reworded
line cannot make a defect silently harmless. ``make lint`` tries them all. Everything goes through these three,
because they remember what to put back.

How it works. ``conformance.defects.planted:<area>__<topic>__<name>`` is the spec of the defective subject. Ranks
resolve it in their own fresh process, plant, and die with it; the driver plants only while a check looks at the
subject itself.
A worker process (two by default) takes one defect after the other and runs the checks of its clauses until each clause
is broken. A clause has *killed* the defect when a check of it failed, hung or crashed; not when the check itself fell
over (its own KeyError, say), nor when the planted code did (a NameError), nor when nothing ran.

Choose defects for their plausibility, never for being easy to catch. One that survives is a finding about the suite:
add or sharpen the check. Never a crash on purpose: the wrong answer must come from the promise that is broken.
"""
