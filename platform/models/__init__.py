"""The built-in models and the user's own, by the name that experiment files use."""

from hedgerow.platform.models.build import build_model
from hedgerow.platform.models.model import MODELS, ModelConfig
from hedgerow.platform.models.vmap_check import check_module

__all__ = ["MODELS", "ModelConfig", "build_model", "check_module"]
