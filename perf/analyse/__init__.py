"""Everything made from records: ratios, intervals, comparisons, targets, growth."""
