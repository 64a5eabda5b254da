"""Files that users have, read strictly and written atomically: tables, stacks of images, whole folders."""

from tenfold.files.arrays import read_array
from tenfold.files.atomic import atomic_folder, atomic_path, atomic_write
from tenfold.files.images import ImageStack, read_images
from tenfold.files.tables import Table, read_frame, read_table, write_table

__all__ = [
    "ImageStack",
    "Table",
    "atomic_folder",
    "atomic_path",
    "atomic_write",
    "read_array",
    "read_frame",
    "read_images",
    "read_table",
    "write_table",
]
