"""The benchmark's modules are scripts of one folder."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "bench"))
