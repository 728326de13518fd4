"""Measuring strategies against each other: workloads, trials, runs, their tables and summaries."""
