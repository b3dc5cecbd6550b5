"""Loggers by the name that `tracking.also` takes: what follows a run in addition to its folder and MLflow."""

LOGGERS = {
    "tensorboard": "hedgerow.platform.loggers.tensorboard_logger:TensorBoardLogger",
    "wandb": "hedgerow.platform.loggers.wandb_logger:WandbLogger",
}
