"""Compiled normalization on plain arrays: `runs` for inputs whose positions are contiguous, `rows` for channels last.

The torch twins are `group_norm` and `batch_norm` in the modules beside this package, for masks, other devices and types.
"""
