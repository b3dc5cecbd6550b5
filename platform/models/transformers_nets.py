"""Models of Hugging Face's package `transformers`, all of whose parameters are trained, or adapters of LoRA."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import AfterValidator, Field
from torch import Tensor, nn

from hedgerow.algorithms.core.hyperparameters import Rule
from hedgerow.platform.common.errors import UserError, one_line, optional_package
from hedgerow.platform.common.registry import nearest
from hedgerow.platform.common.section import Section
from hedgerow.platform.models.model import Model, absolute, check_vocabulary

EAGER = {"attn_implementation": "eager"}
"""Attention as plain operations of torch: its kernels have no batching rule over clients."""


class LoRA(Section):
    """Low-rank adapters of linear layers, of the package `peft` (Hu et al., "LoRA", 2022)."""

    r: int = Field(8, ge=1, description="rank of each adapter")
    alpha: float = Field(8, gt=0, description="adapters are scaled by alpha / r")
    targets: list[str] = Field(
        min_length=1, description="ends of the names of the layers that get an adapter, such as c_attn"
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout of the input of each adapter")
    modules_to_save: list[str] = Field(
        [], description="ends of the names of layers that are trained as a whole, such as score"
    )


class Transformer(Model):
    """Architecture of `transformers`, with parameters from the seed or from a local folder."""

    takes: ClassVar[tuple[str, ...]] = ("token sequences",)
    is_foreign: ClassVar[bool] = True
    auto_class: ClassVar[str]
    """Class of `transformers` that builds the network."""

    config: dict[str, Any] = Field(
        {},
        description="configuration, as in config.json: `model_type`, such as gpt2, and sizes; with `path`, changes of "
        "the folder's",
    )
    path: Annotated[str | None, AfterValidator(absolute)] = Field(
        None,
        min_length=1,
        description="folder written by save_pretrained, with configuration and parameters; null: from `config`",
    )
    lora: LoRA | None = Field(
        None, description="adapters, which alone are trained and transmitted; null: all parameters are"
    )

    rules = (
        Rule(
            lambda model: (model.path is None) == ("model_type" not in model.config),
            "set either `path`, or `model_type` in `config`, such as {{model_type: gpt2, n_layer: 2}}",
        ),
    )

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        with _quiet():
            network = self._network(shape, classes)
            if self.lora is not None:
                network = _with_adapters(network, self.lora)
        return self.wrapped(network)

    def wrapped(self, network: nn.Module) -> nn.Module:
        """Module that returns the logits of a network."""
        raise NotImplementedError

    def sizes(self, classes: int) -> dict[str, int]:
        """Entries of the configuration that follow from the data."""
        raise NotImplementedError

    def _network(self, shape: tuple[int, ...], classes: int) -> Any:
        transformers = _import("transformers")
        auto = getattr(transformers, self.auto_class)
        changes = {key: value for key, value in self.config.items() if key != "model_type"}
        attention = {key: changes.pop(key, value) for key, value in EAGER.items()}
        known = self._known(transformers)
        for key in changes:
            if not hasattr(known, key):
                names = known.to_dict() | known.attribute_map
                raise UserError(f"task.model.config: {known.model_type} has no {key!r}{nearest(key, names)}; remove it")
        sizes = self.sizes(classes) if self.path is None else {"num_labels": classes}
        values = {"use_cache": False} | sizes | changes
        try:
            for key, value in values.items():
                setattr(known, key, value)
            # The entries check one another only in a new configuration.
            config = type(known).from_dict(known.to_dict())
            self._check(config, shape, classes)
            # Parameters on torch's device "meta" have no values.
            if self.path is None or torch.get_default_device().type == "meta":
                return auto.from_config(config, **attention)
            options = {"local_files_only": True, "trust_remote_code": False, "dtype": torch.float32}
            return auto.from_pretrained(self.path, config=config, **options, **attention)
        except UserError:
            raise
        except Exception as error:  # each architecture checks its sizes by errors of its own
            place = "config" if self.path is None else "path"
            raise UserError(
                f"task.model.{place}: {known.model_type} cannot be built ({one_line(error)}); correct its entries"
            ) from error

    def _known(self, transformers: Any) -> Any:
        """Configuration of the folder, or of the architecture with its defaults. Raises UserError."""
        if self.path is None:
            kind = str(self.config["model_type"])
            kinds = list(transformers.CONFIG_MAPPING)
            if kind not in kinds:
                raise UserError(
                    f"task.model.config.model_type: transformers has no {kind!r}{nearest(kind, kinds)}; name one of "
                    "its architectures"
                )
            # Special tokens are those of the published vocabularies.
            none = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
            return transformers.AutoConfig.for_model(kind, **none)
        if not Path(self.path).is_dir():
            raise UserError(f"task.model.path: {self.path} is no folder; give one written by save_pretrained")
        try:
            return transformers.AutoConfig.from_pretrained(self.path, local_files_only=True, trust_remote_code=False)
        except Exception as error:
            raise UserError(
                f"task.model.path: {self.path} cannot be read ({one_line(error)}); give a folder of save_pretrained"
            ) from None

    def _check(self, config: Any, shape: tuple[int, ...], classes: int) -> None:
        """Raises UserError if sequences are longer, or have more tokens, than a configuration allows."""
        longest = getattr(config, "max_position_embeddings", None)
        if longest is not None and longest < shape[0]:
            key = config.attribute_map.get("max_position_embeddings", "max_position_embeddings")
            raise UserError(
                f"task.model.config.{key}: {config.model_type} takes up to {longest} tokens, and samples have "
                f"{shape[0]}; raise it, or shorten the samples"
            )
        needed = self.sizes(classes)["vocab_size"]
        if config.vocab_size < needed:
            raise UserError(
                f"task.model: {config.model_type} has a vocabulary of {config.vocab_size} tokens, and the data have "
                f"{needed}; remove `vocab_size`, or choose a model with more tokens"
            )


class CausalTransformer(Transformer):
    """Language model that predicts the next token at every position, for `task.loss: next_token`."""

    auto_class: ClassVar[str] = "AutoModelForCausalLM"

    def sizes(self, classes: int) -> dict[str, int]:
        return {"vocab_size": classes}

    def wrapped(self, network: nn.Module) -> nn.Module:
        return TransformerLogits(network)

    def _network(self, shape: tuple[int, ...], classes: int) -> Any:
        network = super()._network(shape, classes)
        if network.config.vocab_size > classes:
            # Tokens that the data do not have are neither predicted nor transmitted.
            network.resize_token_embeddings(classes)
        return network


class TransformerClassifier(Transformer):
    """Classifier of sequences of tokens."""

    auto_class: ClassVar[str] = "AutoModelForSequenceClassification"

    vocabulary: int | None = Field(None, ge=2, description="number of distinct tokens; null: that of the data set")
    padding: int | None = Field(
        None, ge=0, description="token that fills up sequences, which the model leaves out; null: none"
    )

    def for_tokens(self, classes: int, count: Callable[[], int]) -> Self:
        check_vocabulary(self.vocabulary, count())
        return self.model_copy(update={"vocabulary": self.vocabulary or count()})

    def sizes(self, classes: int) -> dict[str, int]:
        return {"vocab_size": self.vocabulary or classes, "num_labels": classes}

    def wrapped(self, network: nn.Module) -> nn.Module:
        # Some architectures classify by the last token before the padding, and need a number for it: -1 is no token.
        network.config.pad_token_id = -1 if self.padding is None else self.padding  # type: ignore[union-attr]
        return TransformerLogits(network, self.padding)


class TransformerLogits(nn.Module):
    """Logits of a network of `transformers`. tokens (B, L) -> (B, classes) of a classifier, (B, L, tokens) of a
    language model.

    padding: token that is left out; None: there is none.
    """

    def __init__(self, network: nn.Module, padding: int | None = None):
        super().__init__()
        self.network, self.padding = network, padding

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens.long()
        # Without padding, the mask is the same for all clients under vmap, so that the network may look at it.
        everything = torch.ones(tokens.shape, dtype=torch.long, device=tokens.device)
        mask = everything if self.padding is None else (tokens != self.padding).long()
        logits: Tensor = self.network(input_ids=tokens, attention_mask=mask).logits
        return logits


def _with_adapters(network: Any, lora: LoRA) -> nn.Module:
    """The network with adapters, which are trained, while its own parameters are frozen. Raises UserError."""
    peft = _import("peft")
    options = {"target_modules": lora.targets, "modules_to_save": lora.modules_to_save or None}
    config = peft.LoraConfig(r=lora.r, lora_alpha=lora.alpha, lora_dropout=lora.dropout, **options)
    ends = {name.rpartition(".")[2] for name, _ in network.named_modules() if name}
    for key, wanted in (("targets", lora.targets), ("modules_to_save", lora.modules_to_save)):
        for name in wanted:
            if not any(layer == name or layer.endswith(f".{name}") for layer, _ in network.named_modules()):
                raise UserError(
                    f"task.model.lora.{key}: {type(network).__name__} has no layer {name!r}{nearest(name, ends)}; "
                    f"name some of {', '.join(sorted(end for end in ends if not end.isdigit()))}"
                )
    try:
        adapted: nn.Module = peft.get_peft_model(network, config)
    except ValueError as error:
        raise UserError(
            f"task.model.lora: adapters cannot be added ({one_line(error)}); choose other targets"
        ) from error
    return adapted


def _import(package: str) -> Any:
    with optional_package(f"task.model: it needs the package `{package}`", "huggingface"):
        return import_module(package)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses progress bars and hints of the libraries, such as that a head has new parameters."""
    logging = _import("transformers").utils.logging
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()
