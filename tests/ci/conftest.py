"""Import path of the scripts of ci/, which have a package of their own."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "ci"))
