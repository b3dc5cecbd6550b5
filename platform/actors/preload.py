"""Modules that Ray's processes import in advance, if this process starts Ray.

Python's garbage collector runs again and again while modules create their many long-lived objects, which costs a tenth
of the start time and more. It is therefore disabled during the imports; afterwards the objects are frozen, so that
later collections skip them.
"""

import gc
from importlib import import_module

gc.disable()
try:
    for _module in ("torch", "hedgerow.platform.actors.ray_transport"):
        import_module(_module)
    gc.freeze()
finally:
    # Ray continues if an import fails.
    gc.enable()
