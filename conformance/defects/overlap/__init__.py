"""Defects of the overlapped step: factories, warm-up, partial steps, the order of messages, owners."""
