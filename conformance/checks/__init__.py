"""The checks: one sentence of behaviour each, citing the clauses it decides; they meet implementations through subjects."""
