"""Loggers for tests whose processes import them."""

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


class Diary(Logger):
    """Writes its calls to `diary.txt` in the run folder, a line for each."""

    def start(self, run):
        self.file = run.folder / "diary.txt"
        self.write("start", *[record["round"] for record in run.history])

    def log(self, record):
        self.write("log", record["round"])

    def end(self, status, summary):
        self.write("end", status)

    def write(self, *words):
        with self.file.open("a") as file:
            print(*words, file=file)
