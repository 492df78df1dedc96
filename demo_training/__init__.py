"""Trains the demo model: a tiny FLUX.2 pipeline that draws what simple prompts say. See README.md."""
