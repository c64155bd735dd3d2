"""Defects of the join context: hooks, the handshake, throwing, notifications, bindings."""
