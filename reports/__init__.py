"""Records, regressions and pages: reads what the other rooms wrote and measures nothing."""
