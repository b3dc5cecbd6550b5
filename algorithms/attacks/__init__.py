"""Attacks of malicious clients in a simulation. Every algorithm whose steps declare their parts accepts them.

`ATTACKS` maps the values of `simulation.attack.kind` to classes; users may also give dotted paths of their own classes.
"""

ATTACKS = {
    "label_flip": "hedgerow.algorithms.attacks.label_flip:LabelFlip",
    "sign_flip": "hedgerow.algorithms.attacks.sign_flip:SignFlip",
    "gaussian": "hedgerow.algorithms.attacks.gaussian:Gaussian",
    "alie": "hedgerow.algorithms.attacks.alie:ALittleIsEnough",
    "model_replacement": "hedgerow.algorithms.attacks.model_replacement:ModelReplacement",
}
