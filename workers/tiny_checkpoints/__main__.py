"""Write a tiny checkpoint: `python -m workers.tiny_checkpoints FAMILY FOLDER`. Prints the path of its model file."""

from __future__ import annotations

import argparse
from pathlib import Path

from workers.model_file import FamilyName
from workers.tiny_checkpoints import write_tiny_checkpoint


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m workers.tiny_checkpoints", description=__doc__)
    parser.add_argument("family", type=FamilyName, metavar="FAMILY", help="flux, flux2 or sd3")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="created if it is not there")
    arguments = parser.parse_args()
    print(write_tiny_checkpoint(arguments.family, arguments.folder))


if __name__ == "__main__":
    main()
