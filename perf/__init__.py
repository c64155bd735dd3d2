"""The performance harness: sweeps of cells, measured interleaved and verified against one process."""
