"""The fault matrix: every fault, at every point, in every role, and what each rank makes of it.

    cells      a cell as a value, and the rules that say which are legal; how many are enough
    promises   how soon an error must come, and which words name a rank and a stage
    group      a process group that can skip, repeat, swap, corrupt or misshape one collective
    injecting  the fault of a cell: when it is due on its rank, and what it does there
    training   what runs on the ranks, and how each of them leaves
    judging    what became of a cell: right, told by name, or one of the bad outcomes
    running    many cells side by side, and the record of them
    on_hosts   cells on hosts whose links can be cut and slowed, and which can be lost
    known      cells that are known to be bad, with the reason
    soak       thousands of iterations and constructions under slow ranks and pauses: everything stays flat
"""
