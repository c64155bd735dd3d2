"""From a request to a judged run: cases, the pytest plugin, verdicts, judgement, report."""
