"""`make gpu`: one command that says what is proved on this machine's GPUs, part by part, and what is not."""
