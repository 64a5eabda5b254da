"""Makes the sample claims importable by name, here and in the worker processes."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
