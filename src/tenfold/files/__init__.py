"""Files that users have, read strictly and written atomically: tables, stacks of images, whole folders."""

from tenfold.files.atomic import atomic_folder, atomic_path, atomic_write

__all__ = ["atomic_folder", "atomic_path", "atomic_write"]
