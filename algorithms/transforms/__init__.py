"""Transforms of client updates. Every algorithm whose steps declare their parts accepts them.

`TRANSFORMS` maps the values of `transforms[].kind` to classes; users may also give dotted paths of their own classes.
"""

TRANSFORMS = {
    "clip": "hedgerow.algorithms.transforms.clip:Clip",
    "adaptive_clip": "hedgerow.algorithms.transforms.adaptive_clip:AdaptiveClip",
    "gaussian_noise": "hedgerow.algorithms.transforms.gaussian_noise:GaussianNoise",
    "local_noise": "hedgerow.algorithms.transforms.local_noise:LocalNoise",
    "random_k": "hedgerow.algorithms.transforms.random_sparsify:RandomK",
    "quantize": "hedgerow.algorithms.transforms.quantize:Quantize",
    "top_k": "hedgerow.algorithms.transforms.sparsify:TopK",
    "sketch": "hedgerow.algorithms.transforms.sketching:Sketch",
}
