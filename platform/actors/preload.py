"""What the processes of a Ray that is started here import before they are asked for anything.

Python looks for garbage again and again while modules make their many lasting objects, which costs a tenth of the start
and more; afterwards these are set aside, so that no later look goes over them.
"""

import gc
from importlib import import_module

gc.disable()
try:
    for _module in ("torch", "hedgerow.platform.actors.client_actor"):
        import_module(_module)
    gc.freeze()
finally:
    # Ray goes on where an import fails.
    gc.enable()
