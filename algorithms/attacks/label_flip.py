"""Label flipping."""

from hedgerow.algorithms.attacks.attack import Attack


class LabelFlip(Attack):
    """Attackers train on the labels classes - 1 - y instead of y (Tolpegin et al., 2020)."""

    flips_labels = True
