"""The frontend: the public API over any number of groups. Imports no torch."""
