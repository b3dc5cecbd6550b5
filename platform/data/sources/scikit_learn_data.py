"""scikit-learn's data sets, which need no download."""

from pathlib import Path

import numpy as np
from pydantic import Field

from hedgerow.platform.data.dataset import Dataset, stratified_split
from hedgerow.platform.data.sources.source import Source


class Digits(Source):
    """scikit-learn's 1797 handwritten digits, 1x8x8 (UCI Optical Recognition of Handwritten Digits, test part)."""

    test_fraction: float = Field(0.2, gt=0, lt=1, description="share of each class that is used for testing")

    def load(self, root: Path) -> Dataset:
        from sklearn.datasets import load_digits

        digits = load_digits()
        x, y = digits.images.astype(np.uint8)[:, None], digits.target.astype(np.int64)
        train, test = stratified_split(y, self.test_fraction)
        zero, full = np.zeros((1, 1, 1), np.float32), np.full((1, 1, 1), 16, np.float32)
        return Dataset("digits", x[train], y[train], x[test], y[test], 10, zero, full, tuple("0123456789"))


class Diabetes(Source):
    """scikit-learn's 442 diabetes patients, for regression (Efron et al. 2004): 10 features, progression in one year.

    The progression is standardised by the training samples: 0 is their mean, and 1 their standard deviation.
    """

    test_fraction: float = Field(0.2, gt=0, lt=1, description="share of the patients that is used for testing")

    def load(self, root: Path) -> Dataset:
        from sklearn.datasets import load_diabetes

        x, y = load_diabetes(return_X_y=True)
        order = np.random.default_rng([0, 71]).permutation(len(y))
        test, train = np.split(order, [round(self.test_fraction * len(y))])
        x, y = x.astype(np.float32), ((y - y[train].mean()) / y[train].std()).astype(np.float32)
        mean, std = x[train].mean(0), x[train].std(0)
        return Dataset("diabetes", x[train], y[train], x[test], y[test], 1, mean, std, (), targets="numbers")
