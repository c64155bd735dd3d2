"""The commands of ``python -m perf``, one file each."""
