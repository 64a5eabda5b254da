"""Files that users have, read strictly and written atomically: tables, stacks of images, whole folders.

Names are looked up when they are used, so that `atomic_write` does not cost polars, nor `read_table` Pillow.
"""

from typing import TYPE_CHECKING

from tenfold.lazy_names import lazy_names

if TYPE_CHECKING:
    from tenfold.files.arrays import read_array
    from tenfold.files.atomic import atomic_folder, atomic_path, atomic_write
    from tenfold.files.images import ImageStack, read_images
    from tenfold.files.tables import Table, read_frame, read_table, row_error, write_table

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
    "row_error",
    "write_table",
]

_HOMES = {
    "ImageStack": "images",
    "Table": "tables",
    "atomic_folder": "atomic",
    "atomic_path": "atomic",
    "atomic_write": "atomic",
    "read_array": "arrays",
    "read_frame": "tables",
    "read_images": "images",
    "read_table": "tables",
    "row_error": "tables",
    "write_table": "tables",
}

__getattr__ = lazy_names(__name__, _HOMES)
