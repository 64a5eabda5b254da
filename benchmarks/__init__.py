"""Tenfold and its peers side by side: ``python -m benchmarks AREA``. One module an area, each with its ``CASES``."""
