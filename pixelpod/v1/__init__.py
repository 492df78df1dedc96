"""Generated from protos/pixelpod/v1 by `make protos`; do not edit."""
