"""Published tables that one command runs again: `hedgerow table feddyn/T2.3/mnist-iid`, or moml/5.1/s-mnist."""

from hedgerow.searchspaces.reproductions.papers.comm_fedbio_tables import comm_fedbio_tables
from hedgerow.searchspaces.reproductions.papers.disk_studies import disk_family
from hedgerow.searchspaces.reproductions.papers.fedbio_tables import fedbio_tables
from hedgerow.searchspaces.reproductions.papers.feddyn_tables import feddyn_tables
from hedgerow.searchspaces.reproductions.papers.fedhen_tables import fedhen_tables
from hedgerow.searchspaces.reproductions.papers.fedsep_tables import fedsep_tables
from hedgerow.searchspaces.reproductions.papers.moml_tables import moml_tables
from hedgerow.searchspaces.reproductions.papers.pfl_tables import pfl_tables
from hedgerow.searchspaces.reproductions.papers.side_tables import side_tables
from hedgerow.searchspaces.reproductions.published import Line, Table, find_lines

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
