"""Compiled normalization on plain arrays: `channel_runs` where a channel's positions are contiguous, `position_rows` else.

Their inner loops are the modules `programs` and `row_programs`. The torch twins, for other devices, types and layouts, are in
`tenfold.normalization.reference`.
"""
