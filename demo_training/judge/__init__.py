"""The judge: finds what an image shows, by connected components and colours of its pixels. No network is part of it."""

from demo_training.judge.components import components
from demo_training.judge.verdicts import Sight, compare, judge, look

__all__ = ["Sight", "compare", "components", "judge", "look"]
