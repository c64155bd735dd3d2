"""What checks are written with: how a check is declared, the oracle, schedules."""
