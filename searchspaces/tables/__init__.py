"""Published tables that one command runs again: `hedgerow table feddyn/T2.3/mnist-iid`, or moml/5.1/s-mnist."""

from hedgerow.searchspaces.tables.comm_fedbio import comm_fedbio_tables
from hedgerow.searchspaces.tables.disk_studies import disk_family
from hedgerow.searchspaces.tables.fedbio import fedbio_tables
from hedgerow.searchspaces.tables.feddyn import feddyn_tables
from hedgerow.searchspaces.tables.fedhen import fedhen_tables
from hedgerow.searchspaces.tables.fedsep import fedsep_tables
from hedgerow.searchspaces.tables.line import Line, Table, find_lines
from hedgerow.searchspaces.tables.moml import moml_tables
from hedgerow.searchspaces.tables.pfl import pfl_tables
from hedgerow.searchspaces.tables.side import side_tables

FAMILIES = {
    "feddyn": feddyn_tables,
    "pfl": pfl_tables,
    "moml": moml_tables,
    "fedbio": fedbio_tables,
    "comm_fedbio": comm_fedbio_tables,
    "fedsep": fedsep_tables,
    "fedhen": fedhen_tables,
    "side": side_tables,
    "disk": disk_family,
}
"""Papers by name: functions that return their tables by name."""

__all__ = ["FAMILIES", "Line", "Table", "find_lines"]
