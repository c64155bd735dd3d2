"""Planted defects: wrong-on-purpose variants of our own implementation, which the suite must catch.

A suite that lets everything pass looks exactly like one that finds nothing wrong. So each file below is a mistake that
an implementer may well make, and names the clauses whose checks must each notice it::

    python -m conformance defects --select 'ddp/*'        (or: make defects SELECT='ddp/*')

A defect is one file ``<area>/<sin>.py`` (areas: join, ddp_join, ddp, comm, hook, zero)::

    \"""Delayed gradients are divided by one rank too many.\"""    the sin, in one sentence

    from impl.ddp.delayed import DelayedReduction

    from ..planting import edit

    CLAUSES = ("DDP-122",)              EACH of them must catch it
    WORLDS = (2,)                       optional: the fewest ranks that show it; left out: 2, or as few as a check needs


    def plant() -> None:
        edit(DelayedReduction, "_reduce", "ddp._divisor())", "ddp._divisor() + 1)")

``planting.edit`` changes a piece of one function's source, ``planting.swap`` replaces an attribute and ``override`` an
inherited one. They refuse, with a sentence, what is not there: a renamed method or a reworded line cannot make a defect
silently harmless. Everything goes through these three, because they remember what to put back.

How it works. ``conformance.defects.planted:<area>__<sin>`` is the spec of the defective subject. Ranks resolve it in
their own fresh process, plant, and die with it; the driver plants only while a check looks at the subject itself.
A worker process (two by default) takes one defect after the other and runs the checks of its clauses until each clause
is broken. A clause has *killed* the defect when a check of it failed, hung or crashed; not when the check itself fell
over (its own KeyError, say), nor when the planted code did (a NameError), nor when nothing ran.

Choose defects for their plausibility, never for being easy to catch. One that survives is a finding about the suite:
add or sharpen the check. Never a crash on purpose: the wrong answer must come from the promise that is broken.
"""
