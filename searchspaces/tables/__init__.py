"""Published tables that one command runs again: `hedgerow table feddyn/T2.3/mnist-iid`."""

from hedgerow.searchspaces.tables.feddyn import feddyn_tables
from hedgerow.searchspaces.tables.line import Line, Table, find_lines

FAMILIES = {"feddyn": feddyn_tables}
"""Papers by name: functions that return their tables by name."""

__all__ = ["FAMILIES", "Line", "Table", "find_lines"]
