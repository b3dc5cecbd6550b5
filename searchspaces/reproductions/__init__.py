"""Published tables, each reproduced by one command, such as `hedgerow table feddyn/T2.3/mnist-iid`."""

REPRODUCTIONS = {
    "feddyn": "papers/feddyn_tables.yaml",
    "pfl": "papers/pfl_tables.yaml",
    "moml": "papers/moml_tables.yaml",
    "fedbio": "papers/fedbio_tables.yaml",
    "comm_fedbio": "papers/comm_fedbio_tables.yaml",
    "fedsep": "papers/fedsep_tables.yaml",
    "fedhen": "papers/fedhen_tables.yaml",
    "side": "papers/side_tables.yaml",
    "disk": "papers/disk_tables.yaml",
    "referee": "papers/referee_tables.yaml",
    "slots": "papers/slots_tables.yaml",
}
"""File with the tables of each paper, by the first part of their names."""
