"""The commands of `pixelpod`, a file each, and what they share."""
