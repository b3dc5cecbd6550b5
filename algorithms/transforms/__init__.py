"""Transforms of client updates. Every algorithm whose steps declare their parts accepts them.

`TRANSFORMS` maps the values of `transforms[].kind` to classes; users may also give dotted paths of their own classes.
"""

TRANSFORMS = {
    "clip": "hedgerow.algorithms.transforms.clip:Clip",
    "top_k": "hedgerow.algorithms.transforms.sparsify:TopK",
    "sketch": "hedgerow.algorithms.transforms.sketching:Sketch",
}
