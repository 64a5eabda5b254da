"""``tenfold`` with an area of sample claims, and one whose packages are not installed; run as a process by tests."""

import sys

from sample_claims import DOES_NOT_HOLD, HOLDS, INCONCLUSIVE, KNOWN_TO_FAIL, RAISES

from tenfold import areas
from tenfold.areas import Area


class SampleArea(Area):
    """An area whose claims are the sample's."""

    def claims(self):
        return (HOLDS, DOES_NOT_HOLD, INCONCLUSIVE, KNOWN_TO_FAIL, RAISES)


if __name__ == "__main__":
    from tenfold.console.main import main

    areas.AREAS = (
        SampleArea("sample", "Bernoulli 1713, Ars conjectandi", "Throws coins."),
        Area("lacking", "Nobody 1900", "Needs what is not here.", "lacking", ("not_installed_anywhere",)),
    )
    sys.exit(main())
