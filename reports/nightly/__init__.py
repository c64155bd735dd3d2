"""The nightly command: measures, keeps, judges, measures again what looks wrong, and says so in its exit status."""
