"""A decode problem of one's own, for `algorithm: {name: fedsep_bilevel}`: see near_decoder.yaml.

Every client decodes the common model x into one of its own, y, which does well on its samples for training and stays
near x; then it learns on its samples for validation, and encodes what y has learnt into how x should move.
"""

from dataclasses import dataclass

from hedgerow import BilevelTask


@dataclass(frozen=True)
class Near(BilevelTask):
    """g(x, y) = loss(y) + strength/2 ||y - x||^2."""

    strength: float = 1.0

    def start(self):
        return {"x": self.init(), "y": self.init()}

    def lower(self, x, y, batch):
        distance = sum((y[name] - x[name]).square().sum() for name in x)
        return self.loss(y, batch) + 0.5 * self.strength * distance

    def upper(self, x, y, batch):
        return self.loss(y, batch)

    def params(self, x, y):
        return y
