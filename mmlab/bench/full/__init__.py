"""The tables of the two pull requests, measured here and set beside what was published."""
