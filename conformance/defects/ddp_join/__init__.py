"""Defects of DDP on uneven inputs: divisors, what joined ranks add, buffers, the final model."""
