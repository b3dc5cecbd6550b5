"""The built-in models and the user's own, by the name that experiment files use."""

from hedgerow.platform.models.build import build_model
from hedgerow.platform.models.check import check_module
from hedgerow.platform.models.config import MODELS, ModelConfig

__all__ = ["MODELS", "ModelConfig", "build_model", "check_module"]
