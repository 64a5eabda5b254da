"""The command line: the root command, options, tables and progress that all areas share.

Import from its modules (``tenfold.console.tables.show_table``): nothing is re-exported, so that ``tenfold --help``
stays fast.
"""
