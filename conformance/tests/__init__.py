"""Tests of the suite itself, and of our implementation on real ranks."""
