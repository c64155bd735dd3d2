"""One page on many implementations: each judged in an environment of its own, only where something has changed."""
