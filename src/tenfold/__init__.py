"""Ten landmark learning methods, exact to their papers, as one PyTorch library.

Import the part you need from its area, for example ``from tenfold.mixture import GaussianMixture``. Nothing is imported
here, so that ``import tenfold`` and ``tenfold --help`` stay fast.
"""

__version__ = "0.1.0"
