"""What ``python -m conformance`` can be told to do: one module per command, imported only when it is given."""
