"""Transforms of a client's update, which any algorithm takes whose steps declare their parts.

`TRANSFORMS` names the classes that `transforms[].kind` takes, next to dotted paths of the user's own.
"""

TRANSFORMS = {
    "clip": "hedgerow.algorithms.transforms.clip:Clip",
    "top_k": "hedgerow.algorithms.transforms.sparsify:TopK",
    "sketch": "hedgerow.algorithms.transforms.sketching:Sketch",
}
