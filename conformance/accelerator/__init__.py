"""What only an accelerator can show beside the checks: who may share it, order of streams, failures, memory.

Each part is a command of its own, ``python -m conformance gpu PART``, whose findings are written down one by one: a
part that is stopped has lost nothing, and goes on where it was. On the CPU every part runs as well, which says nothing
of accelerators but that the part itself works.
"""
