"""Defects of DistributedDataParallel itself (area C of the catalogue)."""
