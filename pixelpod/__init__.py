"""Pixelpod's public package: the generated contract, the client and the command line. Needs no torch."""
