"""From a sweep and a request to groups of cells, without starting anything."""
