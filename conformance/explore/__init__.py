"""Training programs drawn at random, run on real ranks and compared with one process after every iteration.

    axes      what a program may choose, and which choices go together: legality, with its clauses
    program   a program as a value: drawn at random, written as JSON
    source    the program as plain Python: what the ranks run, and what a failure is reported as
    oracle    what one process with a replica for each rank says of it
    judging   runs both and compares
    causes    failures by their smallest programs, and the listed deviations that they show
    session   many programs, on several workers, resumable; the summary
"""
