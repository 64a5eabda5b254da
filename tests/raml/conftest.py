"""The models of these tests are in a module beside them, imported by its name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
