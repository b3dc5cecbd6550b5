"""What the processes of a Ray that is started here import before they are asked for anything.

Python looks for garbage again and again while modules make their many lasting objects, which costs a quarter of the
start; afterwards these are set aside, so that no later look goes over them.
"""

import gc
from importlib import import_module

gc.disable()
for _module in ("torch", "hedgerow.platform.ray_executor"):
    import_module(_module)
gc.freeze()
gc.enable()
