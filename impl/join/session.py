"""What one rank knows of the others inside a join context, and how it tells joined ranks what comes next.

INTERFACE (to be completed by the join room; ddp and zero rely on exactly these names).

A *follower* is a joinable of ours (DDP, ZeRO). Its joined ranks do not guess the order of an iteration: whenever some
rank shadows, the live ranks announce each act (a group of collectives) with one small all-reduce, and a joined rank
performs the shadow of the act that was announced. While nobody shadows, nothing is announced and nothing is sent
except one roll call per iteration.
"""
