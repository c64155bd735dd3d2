"""The checks: sentences of behaviour that cite the clauses they decide and meet implementations through subjects."""
