"""Loggers that decide, for tests whose processes import them."""

import math

from hedgerow import Logger


class Gap(Logger):
    """Adds the mean training loss of the rounds so far, and the difference of the losses on the training and the test
    samples.
    """

    adds = ("mean_train_loss", "loss_gap")

    def __init__(self):
        self.losses = []

    def add_metrics(self, record):
        self.losses.append(record["train_loss"])
        gap = {"loss_gap": record["test_loss"] - record["train_loss"]} if "test_loss" in record else {}
        return {"mean_train_loss": sum(self.losses) / len(self.losses), **gap}


class StopAt(Logger):
    """Ends the run when a metric is not a number, or reaches its target."""

    def __init__(self, metric, target):
        self.metric, self.target = metric, target

    def stop(self, record):
        value = record.get(self.metric, -math.inf)
        if math.isnan(value) or value >= self.target:
            return f"{self.metric} is {value:g}"
