"""The conformance suite: every documented guarantee as an executable clause, run against any implementation."""
