"""The table of targets: what was promised of ours against torch's, what a record says of it, and whether it is so.

``lines`` holds the promises, ``figures`` the ways from rows to a figure with its interval, ``verdicts`` what an
interval allows to say, ``printing`` the table as text and as Markdown.
"""
