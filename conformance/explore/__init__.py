"""Training programs drawn at random, run on real ranks and compared with one process after every iteration.

    axes      what a program may choose, and which choices go together: legality, with its clauses
    program   a program as a value, written as JSON
    drawing   programs from a seed;  covering  a set of them in which every legal pair of choices meets (a file)
    source    the program as plain Python: what the ranks run (``loading``, ``looking``), and what a failure is
              reported as (``script``); by parts in ``source_model``, ``source_optimizer``, ``source_iteration``
    offering  what a program asks of a subject that declares to lack it
    oracle    what one process with a ``replica`` for each rank says of it
    judging   runs both and compares, as closely as numbers round (``rounding``) and the program magnifies that
              (``tolerance``)
    batch     draws and judges a few programs, and makes small what fails
    session   batch after batch on several workers, resumable; failures by their smallest programs
    listed    the listed deviations of torch that a failure shows;  summary  all that in words
"""
