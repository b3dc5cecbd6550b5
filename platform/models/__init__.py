"""Models by the name that `task.model.name` takes. A model's section and its network share a module."""

MODELS = {
    "logreg": "hedgerow.platform.models.feedforward:LogReg",
    "mlp": "hedgerow.platform.models.feedforward:MLP",
    "cnn": "hedgerow.platform.models.feedforward:CNN",
    "small_cnn": "hedgerow.platform.models.feedforward:SmallCNN",
    "conv4": "hedgerow.platform.models.feedforward:Conv4",
    "resnet18_gn": "hedgerow.platform.models.torchvision_nets:ResNet18",
    "resnet_static": "hedgerow.platform.models.static_resnet:StaticResNet",
    "resnet_exit": "hedgerow.platform.models.early_exit:ExitResNet",
    "preact_resnet": "hedgerow.platform.models.preact_resnet:PreActResNet",
    "resnet": "hedgerow.platform.models.torchvision_nets:ResNet",
    "shufflenet_v2": "hedgerow.platform.models.torchvision_nets:ShuffleNetV2",
    "mobilenet_v2": "hedgerow.platform.models.torchvision_nets:MobileNetV2",
    "vit": "hedgerow.platform.models.torchvision_nets:VisionTransformer",
    "intervals": "hedgerow.platform.models.toy_models:IntervalsModel",
    "mlp_static": "hedgerow.platform.models.toy_models:StaticMLPModel",
    "char_lstm": "hedgerow.platform.models.char_lstm:CharLSTM",
    "transformer_lm": "hedgerow.platform.models.transformers_nets:CausalTransformer",
    "transformer_classifier": "hedgerow.platform.models.transformers_nets:TransformerClassifier",
    "quadratic": "hedgerow.platform.models.quadratic_xy:QuadraticXY",
}
