"""Scripts as users write them, for torch; the suite runs them with nothing but their import lines changed."""
