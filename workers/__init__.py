"""The group: one torchrun world that serves one model. The only package that imports torch."""
