"""Models of transformers, with all parameters or LoRA: same numbers in loop and vmap, traffic, bad input."""

import sys

import numpy as np
import pytest
import torch

from hedgerow.algorithms.core.pytree import flatten
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.data.dataset import Dataset
from hedgerow.platform.runtime.coordinator import build_coordinator
from hedgerow.platform.runtime.factory import build_data, build_module, check

transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")

GPT = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 8}
BERT = {
    "model_type": "bert",
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "hidden_size": 8,
    "intermediate_size": 12,
    "max_position_embeddings": 8,
}
STILL_GPT = GPT | dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
STILL_BERT = BERT | dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
"""Without dropout."""

LORA = {"r": 2, "alpha": 4, "targets": ["c_attn"], "dropout": 0.1}
ADAPTER = 2 * 8 + 24 * 2
"""Number of parameters of the adapter of rank 2 of the only c_attn, which maps 8 to 24 features."""


@pytest.fixture
def root(tmp_path):
    speeches = [f"{name}:\n{name.lower()} to be or not to be that is the question" for name in ("ANN", "BOB", "CYD")]
    (tmp_path / "play.txt").write_text("\n\n".join(speeches * 2))
    return tmp_path


def experiment(model, mode="loop", **task):
    """Experiment with a language model, or with a classifier of the next character."""
    is_lm = model["name"] == "transformer_lm"
    data = {"name": "text", "path": "play.txt", "clients": 3, "length": 8, "samples": 21, "test_samples": 6}
    values = {
        "name": "text",
        "seed": 3,
        "rounds": 2,
        "clients_per_round": "all",
        "task": {
            "data": {**data, "predict": "all" if is_lm else "last"},
            "partition": {"kind": "natural"},
            "model": model,
            **({"loss": "next_token"} if is_lm else {}),
            **task,
        },
        # 21 samples in mini-batches of 8: the last one is padded.
        "algorithm": {"name": "fedavg", "lr": 0.5, "batch_size": 8, "epochs": 2},
        "engine": {"mode": mode, "chunk": 2 if mode == "vmap" else "auto"},
        "resources": {"executor": "inline"},
        "tracking": {"enabled": False},
    }
    return parse_experiment(values)


def lm(**fields):
    return {"name": "transformer_lm", "config": GPT, **fields}


def classifier(config=GPT, **fields):
    return {"name": "transformer_classifier", "config": config, **fields}


def done(model, root, mode="loop"):
    wanted = experiment(model, mode)
    coordinator = build_coordinator([wanted], *build_data(wanted, root), [None])
    while not coordinator.done:
        coordinator.next_round()
    return coordinator


def fresh(model, root):
    wanted = experiment(model)
    return build_module(wanted, build_data(wanted, root)[0])


def trained_names(module):
    return {name for name, parameter in module.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize(
    "model",
    [
        lm(),  # with GPT-2's dropout of 0.1
        lm(config=STILL_GPT),
        lm(config=STILL_GPT, lora=LORA | {"dropout": 0.0}),
        classifier(STILL_GPT),
        classifier(STILL_BERT, lora={"r": 2, "targets": ["query", "value"], "modules_to_save": ["classifier"]}),
    ],
    ids=["lm-dropout", "lm", "lm-lora", "gpt-classifier", "bert-lora"],
)
def test_a_transformer_trains_in_loop_and_vmap_and_equally_without_dropout(model, root):
    start = fresh(model, root)
    names = trained_names(start)
    count = sum(start.get_parameter(name).numel() for name in names)
    states = []
    for mode in ("loop", "vmap"):
        coordinator = done(model, root, mode)
        assert coordinator.plans()["train/clients"]["mode"] == mode
        learner = coordinator.servers[0]
        record = learner.history[-1]
        assert record["bytes_up"] == record["bytes_down"] == 3 * 4 * count
        if model["name"] == "transformer_lm":
            assert record["test_perplexity"] == pytest.approx(np.exp(record["test_loss"]))
        parameters = learner.algorithm.evaluate_params(learner.state)
        assert parameters.keys() == names
        # The other factor of an adapter moves less than float32 shows, as long as this one is near its start, zero.
        for name in names:
            assert "lora_A" in name or not torch.equal(parameters[name], start.get_parameter(name)), name
        states.append(flatten(learner.state))
        # Frozen parameters are the same in each process, and stay so.
        module = coordinator.executor.transport.built[0].algorithms[0].task.module
        for name, parameter in start.named_parameters():
            assert name in names or torch.equal(module.get_parameter(name), parameter)
    assert states[0].keys() == states[1].keys()
    differences = [float((states[0][key] - states[1][key]).abs().max()) for key in states[0]]
    assert start.train_mode is not None or max(differences) < 1e-5


def test_only_adapters_and_named_modules_are_trained(root):
    plain, adapted = fresh(lm(), root), fresh(lm(lora=LORA), root)
    names = trained_names(adapted)
    assert sum(adapted.get_parameter(name).numel() for name in names) == ADAPTER
    assert all("lora_" in name for name in names)
    # An adapter starts at zero, on the base of the same seed.
    tokens = torch.arange(8).view(1, 8)
    with torch.no_grad():
        torch.testing.assert_close(adapted.eval()(tokens), plain.eval()(tokens))
    saving = fresh(classifier(lora={**LORA, "modules_to_save": ["score"]}), root)
    classes = saving(tokens).shape[1]
    assert sum(saving.get_parameter(name).numel() for name in trained_names(saving)) == ADAPTER + 8 * classes


def tokens_of(high, classes, length=8):
    """Data set of sequences of the tokens 0 to high - 1."""
    x = (np.arange(12 * length).reshape(12, length) % high).astype(np.uint8)
    y, one = np.arange(12, dtype=np.int64) % classes, np.ones(1, np.float32)
    names = tuple(map(str, range(classes)))
    return Dataset("tokens", x, y, x, y, classes, 0 * one, one, names, is_tokens=True)


@pytest.mark.parametrize("config", [GPT, BERT], ids=["gpt2", "bert"])
def test_a_classifier_has_the_labels_and_the_vocabulary_of_the_data(config):
    module = build_module(experiment(classifier(config)), tokens_of(high=11, classes=3))
    assert module.network.get_input_embeddings().num_embeddings == 11
    assert module(torch.zeros(2, 8, dtype=torch.long)).shape == (2, 3)
    with pytest.raises(UserError, match=r"task\.model\.vocabulary: the data have 11 tokens, not 5; raise it"):
        build_module(experiment(classifier(config, vocabulary=5)), tokens_of(high=11, classes=3))


def test_padding_is_left_out():
    module = build_module(experiment(classifier(padding=0)), tokens_of(high=5, classes=3)).eval()
    short, filled = torch.tensor([[2, 4, 3]]), torch.tensor([[2, 4, 3, 0, 0]])
    with torch.no_grad():
        torch.testing.assert_close(module(filled), module(short))
        assert not torch.allclose(module(torch.tensor([[2, 4, 3, 1, 1]])), module(short))
    # The network of BERT looks at the mask: clients take turns, and the reason is given.
    turns = build_module(experiment(classifier(BERT, padding=0)), tokens_of(high=5, classes=3))
    assert "under torch.func.vmap" in turns.no_vmap


def test_a_local_folder_gives_configuration_and_parameters(root):
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=40, **{key: value for key, value in GPT.items() if "model" not in key})
    saved = transformers.GPT2LMHeadModel(config)
    saved.save_pretrained(root / "gpt")
    path = str(root / "gpt")
    model = {"name": "transformer_lm", "path": path}
    module = fresh(model, root)
    embedding, expected = module.network.transformer.wte.weight, saved.transformer.wte.weight
    # Only tokens of the data are kept.
    assert len(embedding) < 40
    assert torch.equal(embedding, expected[: len(embedding)])
    for name, parameter in saved.transformer.h.named_parameters():
        assert torch.equal(module.network.transformer.h.get_parameter(name), parameter)
    wanted = experiment({**model, "lora": LORA})
    check(wanted, root)
    assert len(build_module(wanted, build_data(wanted, root)[0]).constants) == 64
    # The head of a classifier is new, and follows from the seed.
    heads = [
        build_module(experiment({"name": "transformer_classifier", "path": path}), tokens_of(9, 3)) for _ in range(2)
    ]
    assert torch.equal(heads[0].network.score.weight, heads[1].network.score.weight)
    assert torch.equal(heads[0].network.transformer.wte.weight, expected)
    with pytest.raises(UserError, match="gpt2 has a vocabulary of 40 tokens, and the data have 50"):
        build_module(experiment({"name": "transformer_classifier", "path": path}), tokens_of(50, 3))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lm(config={**GPT, "n_layers": 3}), "task.model.config: gpt2 has no 'n_layers'; did you mean 'n_layer'"),
        (
            lm(config={**GPT, "model_type": "gtp2"}),
            "config.model_type: transformers has no 'gtp2'; did you mean 'gpt2'",
        ),
        (lm(config={**GPT, "n_head": 3}), "task.model.config: gpt2 cannot be built"),
        (lm(config={**GPT, "n_positions": 4}), "task.model.config.n_positions: gpt2 takes up to 4 tokens"),
        (lm(config={**GPT, "n_embd": 10**6}), "task.model: 3 copies of the .* parameters of transformer_lm"),
        (lm(lora={**LORA, "targets": ["c_atn"]}), "task.model.lora.targets: .* has no layer 'c_atn'; did you mean"),
        (lm(lora={**LORA, "targets": ["ln_1"]}), "task.model.lora: adapters cannot be added"),
        ({"name": "transformer_lm", "config": {}, "path": "nowhere"}, "task.model.path: .*nowhere is no folder"),
    ],
)
def test_mistakes_are_refused_in_one_sentence(model, said, root):
    with pytest.raises(UserError, match=said) as refused:
        check(experiment(model), root)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("model", [{"config": {}}, {"config": GPT, "path": "here"}, {}])
def test_an_architecture_is_given_once(model):
    with pytest.raises(UserError, match=r"task.model.* set either `path`, or `model_type`"):
        experiment({"name": "transformer_lm", **model})


@pytest.mark.parametrize("package", ["transformers", "peft"])
def test_a_missing_package_is_named(package, root, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"the package `{package}`, .* `uv pip install -e '.\[huggingface\]'`"):
        fresh(lm(lora=LORA), root)


def test_the_code_in_a_folder_is_not_run_and_nobody_is_asked(root, monkeypatch):
    folder = root / "evil"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}}')
    (folder / "evil.py").write_text(f"open({str(root / 'mark')!r}, 'w')")
    monkeypatch.setattr("builtins.input", lambda *question: "y")
    with pytest.raises(UserError, match=r"task\.model\.path: .* cannot be read"):
        fresh({"name": "transformer_lm", "path": str(folder)}, root)
    assert not (root / "mark").exists()
