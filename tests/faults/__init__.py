"""Faults that tests order from real rank processes."""
