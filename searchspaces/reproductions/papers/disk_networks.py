"""Teachers and students of DiSK's image tables (thesis, table 6.2 and appendix A.1.5), by their names there."""

from typing import Any

Section = dict[str, Any]

RESNETS: dict[str, Section] = {
    "ResNet34": {"channels": [64, 128, 256, 512], "blocks": [3, 4, 6, 3]},
    "ResNet18": {"channels": [64, 128, 256, 512], "blocks": [2, 2, 2, 2]},
    "ResNet10": {"channels": [64, 128, 256, 512], "blocks": [1, 1, 1, 1]},
    "ResNet10-l": {"channels": [32, 64, 128, 256], "blocks": [1, 1, 1, 1]},
    "ResNet10-m": {"channels": [16, 32, 64, 128], "blocks": [1, 1, 1, 1]},
    "ResNet10-s": {"channels": [8, 16, 32, 64], "blocks": [1, 1, 1, 1]},
    "ResNet10-xs": {"channels": [8, 16, 16, 32], "blocks": [1, 1, 1, 1]},
    "ResNet10-xxs": {"channels": [8, 8, 16, 16], "blocks": [1, 1, 1, 1]},
    "ResNet32x4": {"stem": 32, "channels": [64, 128, 256], "blocks": [5, 5, 5]},
    "ResNet8x4": {"stem": 32, "channels": [64, 128, 256], "blocks": [1, 1, 1]},
    "WRN-40-2": {"stem": 16, "channels": [32, 64, 128], "blocks": [6, 6, 6]},
    "WRN-16-2": {"stem": 16, "channels": [32, 64, 128], "blocks": [2, 2, 2]},
    "WRN-40-1": {"stem": 16, "channels": [16, 32, 64], "blocks": [6, 6, 6]},
}
MODELS: dict[str, Section] = {name: {"name": "resnet", **lists} for name, lists in RESNETS.items()} | {
    "ShuffleNetV2": {"name": "shufflenet_v2"},
    "MobileNetV2x2": {"name": "mobilenet_v2"},
}
LARGE: dict[str, Section] = {
    "ResNet50": {
        "name": "resnet", "channels": [64, 128, 256, 512], "blocks": [3, 4, 6, 3],
        "bottleneck": True, "large_images": True,
    },
    "ResNet18": {
        "name": "resnet", "channels": [64, 128, 256, 512], "blocks": [2, 2, 2, 2], "large_images": True,
    },
    "ViT-Large": {"name": "vit", "layers": 24, "heads": 16, "width": 1024},
    "ViT-Tiny": {"name": "vit"},
}  # fmt: skip
"""Of ImageNet, with torchvision's sizes, ViT-Tiny with timm's."""
