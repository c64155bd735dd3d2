"""Pages made from records: the matrix with its witnesses, a summary for CI, badges, the comparison of two runs."""
