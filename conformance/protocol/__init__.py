"""The protocol explored: every order in which ranks may act, in one process, above simulated messages.

A check on real ranks sees one interleaving of many. Here the ranks are threads that hand a baton on: exactly one runs,
and at each *step* (a collective starts, a wait, a word in the store) ``scheduling.Simulation`` decides who goes next,
whether a wait's slice of time runs out, and whether a rank raises or dies. The code above is the subject's own: Join,
its sessions and failure notes, DDP with its stages and reducer, ZeRO. Beneath it stand a process group, a store and a
clock of ours (``messages``, ``surroundings``).

``search.Explorer`` runs a configuration again and again until every transition of every state was taken. A state is
what each rank has done and seen so far, and what lies in the store: two schedules that lead to the same state have
the same future. ``properties`` says what must hold in each end, ``programs`` what the ranks do.
"""
