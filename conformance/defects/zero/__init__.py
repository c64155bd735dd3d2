"""Defects of ZeRO: arguments, ownership, steps, views, checkpoints, joining, overlap mode."""
