"""The floor that everything communicates on: who the ranks are, and every collective by its label."""
