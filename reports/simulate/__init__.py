"""A simulated year with known truth, replayed through the real judgement: what it finds, and what it makes up."""
