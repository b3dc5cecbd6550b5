"""Invalid experiment files: the mistake in each, and the text that its error message must contain."""

GOOD = """\
name: digits-fedavg
seed: 0
rounds: 100
clients_per_round: 0.1
task:
  data: {name: digits}
  partition:
    kind: dirichlet
    clients: 100
    alpha: 0.3
  model:
    name: mlp
    hidden: [200]
algorithm:
  name: fedavg
  lr: 0.1
  epochs: 2
  batch_size: 8
"""


def change(*pairs: tuple[str, str]) -> str:
    """The good file with some of its text replaced."""
    text = GOOD
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def add(line: str) -> str:
    """The good file with an additional line 19."""
    return f"{GOOD}{line}\n"


MODELS = (
    "(allowed: char_lstm, cnn, conv4, intervals, logreg, mlp, mlp_static, mobilenet_v2, preact_resnet, "
    "quadratic, resnet, resnet18_gn, resnet_exit, resnet_static, shufflenet_v2, small_cnn, "
    "transformer_classifier, transformer_lm, vit, or the dotted path of your own)"
)
ALGORITHMS = (
    "b_moml, central, comm_fedbio_non_iter, comm_fedbio_sketch, comm_fedbio_topk, decouple, disk, ditto, ds_fl, "
    "fed_et, fedavg, fedavg_oracle, fedbio, fedbio_local, fedbioacc, fedbioacc_local, fedbn, feddf, "
    "feddst, feddyn, federated_dropout, fedhen, fednest, fednova, fedper, fedprox, fedrep, fedrolex, fedsep, "
    "fedsep_bilevel, fedsep_masks, fedsgd, fedsplit, fitnet, fjord, flash, focus, fs, ftml, ftrl, "
    "full_hypergradient, heterofl, kd, lfednest, local_bo, mogd, moml, moml_zero, mrbo, noside, numpy_client, "
    "offline, per_fedavg, pfl_oracle, pfldyn, pflscaf, preprocess, scaffold, semckd, simkd, simkd_disk, stem, "
    "stocbio, storm, toe, zerofl, or the dotted path of your own)"
)

BAD_FILES: list[tuple[str, str, tuple[str, ...]]] = [
    # Not an experiment file at all.
    ("empty", "", ("the file is empty", "begin with `name: ...`")),
    ("only comments", "# later\n", ("the file is empty",)),
    ("a list", "\n- name: x\n", (":2: expected `key: value` lines at the top level",)),
    ("a text", "digits\n", (":1: expected `key: value` lines at the top level",)),
    # YAML.
    ("tab", change(("  epochs", "\tepochs")), (":17: not valid YAML: the indentation contains a tab", "use spaces")),
    ("indentation", change(("seed: 0", "  seed: 0")), (":2: not valid YAML", "fix the indentation")),
    ("indentation of a section", change(("    clients", "   clients")), (":9: not valid YAML", "indentation")),
    ("two colons", change(("seed: 0", "seed: 0: 1")), (":2: not valid YAML", "fix the indentation, or quote")),
    ("no colon", change(("seed: 0", "seed 0")), (":3: not valid YAML: a line before this one has no `: `",)),
    ("open list", change(("[200]", "[200")), ("not valid YAML: a bracket is not closed",)),
    ("open section", change(("{name: digits}", "{name: digits")), ("not valid YAML: a bracket is not closed",)),
    ("open quote", change(("digits-fedavg", "'digits")), ("not valid YAML: a closing quote is missing",)),
    ("two documents", add("---\nname: b"), (":19: not valid YAML: a second document", "one experiment per file")),
    (
        "unknown alias",
        change(("seed: 0", "seed: *s")),
        (":2: not valid YAML: a value that begins with `*`", "quote it"),
    ),
    ("alias of itself", add("x: &a [*a]"), ("an alias (*) inside its own anchor (&)",)),
    ("deep nesting", add("x: " + "[" * 5000 + "]" * 5000), ("nested too deeply",)),
    (
        "object",
        change(("seed: 0", "seed: !!python/object/apply:os.getpid []")),
        (":2:", "!!python/object", "plain value"),
    ),
    (
        "tag",
        change(("seed: 0", "seed: !!int x")),
        (":2: not valid YAML: !!int is a tag that is not allowed here; write a plain",),
    ),
    ("merge of a number", change(("  lr: 0.1", "  <<: 3")), (":16: not valid YAML: `<<` needs a section",)),
    ("unprintable", change(("seed: 0", "seed: 0\x01")), (":2: not valid YAML: an unprintable character; remove it",)),
    # Keys.
    ("twice", add("seed: 1"), (":19: seed is given twice; remove one of the two",)),
    ("twice in a section", change(("epochs", "lr")), (":17: algorithm.lr is given twice",)),
    ("number as key", add("1: 2"), (":19: YAML does not read the key '1' as text; put it in quotes",)),
    ("truth as key", add("on: 2"), (":19: YAML does not read the key 'on' as text",)),
    ("list as key", add("? [a]\n: 2"), (":19: a list or section cannot be a key",)),
    ("key of two lines", add('"a\\nb": 2'), (":19: a b is not a key here (allowed: aggregation,",)),
    (
        "misspelt",
        change(("lr: 0.1", "lrr: 0.1")),
        (":16: algorithm.lrr is not a key here; did you mean 'lr'? (allowed: b",),
    ),
    ("misspelt, needed", change(("rounds", "round")), (":3: round is not a key here; did you mean 'rounds'?",)),
    ("capital", change(("epochs", "Epochs")), (":17: algorithm.Epochs is not a key here; did you mean 'epochs'?",)),
    (
        "misspelt section",
        change(("algorithm", "algoritm")),
        (":14: algoritm is not a key", "did you mean 'algorithm'?"),
    ),
    ("unknown", add("gpu: true"), (":19: gpu is not a key here (allowed: aggregation, algorithm, checkpoints,",)),
    (
        "of another kind",
        change(("dirichlet", "iid")),
        (":10: task.partition.alpha is not a key here (allowed: client_test_fraction,",),
    ),
    (
        "of another model",
        change(("hidden: [200]", "kernel: 5")),
        (":13: task.model.kernel", "(allowed: freeze, hidden, init, name)"),
    ),
    (
        "of the server's step",
        add("aggregation: {server_optimizer: {lrate: 1}}"),
        (":19: aggregation.server_optimizer.lrate", "(allowed: beta2, lr, mom"),
    ),
    ("of another algorithm", add("  mu: 0.1"), (":19: algorithm.mu is not a key here (allowed: batch_size,",)),
    # Missing keys.
    (
        "no rounds",
        change(("rounds: 100\n", "")),
        (":1: rounds is missing; add `rounds: ...` to the file (number of comm",),
    ),
    ("no name", change(("name: digits-fedavg\n", "")), (":1: name is missing; add `name: ...` to the file",)),
    ("no data", change(("  data: {name: digits}\n", "")), (":5: task.data is missing; add `data: ...` under task",)),
    (
        "no alpha",
        change(("    alpha: 0.3\n", "")),
        (":7: task.partition.alpha is missing", "under task.partition (conc"),
    ),
    (
        "no kind",
        change(("    kind: dirichlet\n", "")),
        (
            ":7: task.partition is missing its key 'kind'",
            "one of acid, alid, dirichlet, dirichlet_by_class, distribution, iid, lab",
        ),
    ),
    (
        "no model",
        change(("    name: mlp\n", "")),
        (":11: task.model is missing its key 'name'", "one of char_lstm, cnn, conv4"),
    ),
    (
        "no algorithm",
        change(("  name: fedavg\n", "")),
        (":14: algorithm is missing its key 'name'", "one of " + ALGORITHMS[:-1]),
    ),
    # Values of the wrong type.
    ("truth for rounds", change(("100\nc", "true\nc")), (":3: rounds must be a whole number, not true",)),
    ("fraction of a round", change(("100\nc", "2.5\nc")), (":3: rounds must be a whole number, not 2.5",)),
    ("whole float", change(("seed: 0", "seed: 1.0")), (":2: seed must be a whole number, not 1.0",)),
    ("octal", change(("seed: 0", "seed: 010")), (":2: seed must be a whole number, not '010'",)),
    ("time of day", change(("seed: 0", "seed: 1:30")), (":2: seed must be a whole number, not '1:30'",)),
    ("endless number", change(("seed: 0", "seed: 1" + "0" * 5000)), (":2: seed must be a whole number, not '1000",)),
    ("null", change(("seed: 0", "seed:")), (":2: seed must be a whole number, not null",)),
    ("truth for a number", change(("lr: 0.1", "lr: yes")), (":16: algorithm.lr must be a number, not true",)),
    ("text for a number", change(("lr: 0.1", "lr: '0.1'")), (":16: algorithm.lr must be a number, not '0.1'",)),
    ("comma", change(("lr: 0.1", "lr: 0,1")), (":16: algorithm.lr must be a number, not '0,1'",)),
    ("not a number", change(("lr: 0.1", "lr: .nan")), (":16: algorithm.lr must be a finite number, not nan",)),
    ("infinity", change(("lr: 0.1", "lr: .inf")), (":16: algorithm.lr must be a finite number, not inf",)),
    ("too large", change(("lr: 0.1", "lr: 1e999")), (":16: algorithm.lr must be a finite number, not inf",)),
    ("number as name", change(("digits-fedavg", "3")), (":1: name must be text, not 3; put it in quotes",)),
    ("truth as name", change(("digits-fedavg", "no")), (":1: name must be text, not false; put it in quotes",)),
    ("number for truth", add("tracking: {enabled: 1}"), (":19: tracking.enabled must be true or false, not 1",)),
    ("number for a list", change(("[200]", "200")), (":13: task.model.hidden must be a list, not 200",)),
    ("text in a list", change(("[200]", "[200, a]")), (":13: task.model.hidden.1 must be a whole number, not 'a'",)),
    (
        "section for a number",
        change(("lr: 0.1", "lr: {start: 1}")),
        (":16: algorithm.lr must be a number, not a section",),
    ),
    ("empty section", add("evaluation:"), (":19: evaluation must be a section with keys, not null",)),
    (
        "text for a section",
        change(("{name: digits}", "digits")),
        (":6: task.data must be a sec", "`data: {name: digits}`"),
    ),
    (
        "list for a section",
        change(("{name: digits}", "[digits]")),
        (":6: task.data must be a section with keys, not ['d",),
    ),
    ("number for a model", "task: {model: 3}", (":1: task.model must be a section with keys, not 3", " mistakes\n  ")),
    ("text for an algorithm", "algorithm: fedavg", (":1: algorithm must be a section", "`algorithm: {name: fedavg}`")),
    # Values out of bounds.
    ("no round", change(("100\nc", "0\nc")), (":3: rounds must be at least 1, not 0",)),
    ("negative seed", change(("seed: 0", "seed: -1")), (":2: seed must be at least 0, not -1",)),
    *(
        (
            f"{value} for clients per round",
            change(("clients_per_round: 0.1", f"clients_per_round: {value}")),
            (f":4: clients_per_round must be a number of clients, a fraction between 0 and 1, or all, not {value}",),
        )
        for value in ("1.0", "0", "1.5", "true", "'any'", "null")
    ),
    ("no step", change(("lr: 0.1", "lr: 0")), (":16: algorithm.lr must be greater than 0, not 0",)),
    ("momentum 1", add("  momentum: 1"), (":19: algorithm.momentum must be less than 1, not 1",)),
    ("empty layer", change(("[200]", "[200,\n      0]")), (":14: task.model.hidden.1 must be at least 1, not 0",)),
    (
        "few channels",
        change(("mlp", "cnn"), ("hidden: [200]", "channels: []")),
        (":13: task.model.channels", "at least 1"),
    ),
    ("end without targets", add("evaluation: {stop: true}"), (":19: evaluation: `stop` needs `targets`",)),
    (
        "loss of no client",
        add("evaluation: {target_metric: client_loss, clients: 0}"),
        (":19: evaluation: `target_metric: client_loss` needs `clients` above 0",),
    ),
    (
        "loss of 0",
        add("evaluation: {target_metric: client_loss, targets: [0.0]}"),
        (":19: evaluation: target 0 is not a loss above 0",),
    ),
    (
        "best round by an unknown metric",
        add("checkpoints: {best: validation_acuracy}"),
        (
            "`checkpoints.best`: 'validation_acuracy' is not a metric of evaluated rounds",
            "; did you mean 'validation_accuracy'?",
        ),
    ),
    (
        "best round without validation samples",
        add("checkpoints: {best: validation_loss}"),
        ("`checkpoints.best: validation_loss` needs validation samples; set `task.validation: {fraction: 0.1}`",),
    ),
    (
        "patience with test samples",
        add("evaluation: {patience: {metric: test_loss, evaluations: 3}}"),
        ("evaluation.patience.metric", "selects by samples that only score the result; set it to validation_loss"),
    ),
    (
        "patience without clients",
        add("evaluation: {clients: 0, patience: {metric: client_loss, evaluations: 3}}"),
        ("`evaluation.patience.metric: client_loss` needs `evaluation.clients` above 0",),
    ),
    ("patience of 0", add("evaluation: {patience: {evaluations: 0}}"), (":19: evaluation.patience.evaluations",)),
    ("consent to nothing", add("evaluation: {allow_test_selection: true}"), ("has no effect without",)),
    ("seed and seeds", add("seeds: [0, 1]"), ("give either `seed`, for one run, or `seeds`",)),
    ("a seed twice", change(("seed: 0", "seeds: [3, 3]")), ("`seeds` has a seed twice; remove one",)),
    ("no seeds", change(("seed: 0", "seeds: []")), (":2: seeds",)),
    ("a negative seed", change(("seed: 0", "seeds: [0, -1]")), (":2: seeds",)),
    ("target of 95", add("evaluation: {targets: [95]}"), (":19: evaluation: target 95 is not a test accuracy",)),
    ("bad name", change(("digits-fedavg", "a/b")), (":1: name must be letters, digits, '.', '_' and '-'", "not 'a/b'")),
    (
        "output elsewhere",
        add("output: s3://bucket/runs"),
        (":19: output: 's3://bucket/runs' is a URI", "`checkpoints.st"),
    ),
    (
        "storage here",
        add("checkpoints: {storage: /disk}"),
        (":19: checkpoints.storage: '/disk' is not a URI; write s3://",),
    ),
    (
        "storage with a password",
        add("checkpoints: {storage: 's3://me:secret@bucket/runs'}"),
        (":19: checkpoints.storage: a URI with credentials would be written into every record", "the environment"),
    ),
    ("empty output", add("output: ''"), (":19: output must be not empty, not ''",)),
    (
        "no chance",
        add("simulation: {availability: {kind: diurnal, probability: 0.8}}"),
        (":19: simulation.availability: `probability` times 1 + `amplitude` is 1.6, which is not a probability",),
    ),
    ("everybody drops out", add("simulation: {dropout: 1.0}"), (":19: simulation.dropout must be less than 1, not 1",)),
    ("empty buffer", add("schedule: {kind: fedbuff, buffer: 0}"), (":19: schedule.buffer must be at least 1",)),
    ("schedule", add("schedule: {kind: fedbuf}"), (":19: schedule.kind: 'fedbuf'", "mean 'fedbuff'?")),
    (
        "staleness",
        add("schedule: {kind: fedasync, staleness: {kind: hing}}"),
        (":19: schedule.staleness.kind: 'hing'", "mean 'hinge'?"),
    ),
    ("no time", add("simulation: {deadline: 0.0}"), (":19: simulation.deadline must be greater than 0, not 0",)),
    (
        "under-selection",
        add("simulation: {over_selection: 0.9}"),
        (":19: simulation.over_selection must be at least 1",),
    ),
    (
        "no speeds",
        add("simulation: {speed: {kind: list, speeds: []}}"),
        (":19: simulation.speed.speeds must be a list",),
    ),
    (
        "a still client",
        add("simulation: {speed: {kind: list, speeds: [1.0, 0.0]}}"),
        (":19: simulation.speed.speeds.1",),
    ),
    (
        "availability",
        add("simulation: {availability: {kind: bernouli}}"),
        (":19: simulation.availability.kind: 'bernouli' is not known; did you mean 'bernoulli'?",),
    ),
    # Values that are not among the choices.
    (
        "data",
        change(("name: digits}", "name: mnits}")),
        (
            ":6: task.data.name: 'mnits' is not known",
            "'mnist'? (allowed: cifar10, cifar100, client_folders, csv, diabetes, digits, ",
        ),
    ),
    (
        "partition",
        change(("dirichlet", "dirichelt")),
        (":8: task.partition.kind: 'dirichelt'", "'dirichlet'? (allowed: acid, alid, dirichlet, "),
    ),
    ("model", change(("mlp", "MPL")), (":12: task.model.name: 'MPL' is not known; did you mean 'mlp'? " + MODELS,)),
    ("model of a list", change(("mlp", "[mlp]")), (":12: task.model.name: ['mlp'] is not known", MODELS)),
    (
        "algorithm",
        change(("name: fedavg", "name: FedAvgg")),
        (":15: algorithm.name: 'FedAvgg'", "mean 'fedavg'?", ALGORITHMS),
    ),
    ("algorithm of a number", change(("name: fedavg", "name: 3")), (":15: algorithm.name: 3 is not known", ALGORITHMS)),
    (
        "executor",
        add("resources: {executor: rya}"),
        (":19: resources.executor must be auto, inline, processes or ray, not 'rya'", "'ray'?"),
    ),
    (
        "a key of another framework",
        add("resources: {gpus_per_actr: 1}"),
        (":19: resources.gpus_per_actr is not a key here; did you mean 'gpus_per_actor'?",),
    ),
    ("actors", add("resources: {actors: autoo}"), (":19: resources.actors must be a whole number or auto", "'auto'?")),
    (
        "optimiser",
        add("aggregation: {server_optimizer: {optimizer: adm}}"),
        (":19: aggregation.server_optimizer.optimizer must be sgd,", "mean 'adam'?"),
    ),
    # Values that contradict each other.
    (
        "auxiliary loss by two weights",
        add("objective: {kind: robustness, alpha: 0.5, limit: 0.1}"),
        (":19: objective: give either `alpha` or `limit`, and set the other to null",),
    ),
    (
        "an objective of exact solutions",
        add("  solver: newton\nobjective: {kind: stability}"),
        (":1: `objective` needs local steps, and `algorithm.solver: newton` has none; set it to sgd",),
    ),
    ("objective", add("objective: {kind: robustnes}"), (":19: objective.kind: 'robustnes'", "mean 'robustness'?")),
    (
        "a key of another objective",
        add("objective: {kind: stability, ratio: 2.0}"),
        (":19: objective.ratio is not a key here (allowed: alpha, detach_target, dual_lr, kind, limit, noise, temp",),
    ),
    (
        "epochs and steps",
        add("  steps: 3"),
        (":14: algorithm: give either `epochs` or `steps`, and set the other to null",),
    ),
    # User-defined classes.
    (
        "no such module",
        change(("name: fedavg", "name: nowhere.A")),
        (":15: algorithm.name: cannot import 'nowhere.A'", "put it into the folder of the e"),
    ),
    ("no such class", change(("name: fedavg", "name: json.A")), (":15: algorithm.name: module 'json' has no 'A'",)),
    ("near class", change(("name: fedavg", "name: json.JSONDecode")), (":15:", "did you mean 'JSONDecoder'?")),
    (
        "not an algorithm",
        change(("name: fedavg", "name: json.JSONDecoder")),
        (":15:", "is not an algorithm; name a class t"),
    ),
    (
        "a loop of four",
        add("engine: {plans: {train/clients: {mode: loop, chunk: 4}}}"),
        ("engine.plans.train/clients", "`chunk` and `compiled` are for vmap; leave them out, or set `mode` to vmap"),
    ),
    ("not a path", change(("name: fedavg", "name: .fedavg")), (":15: algorithm.name: '.fedavg' is not a dotted path",)),
    # Several mistakes, reported in the order of the file.
    (
        "several",
        change(("seed: 0", "seed: -1"), ("100\nc", "0\nc")),
        (": 2 mistakes\n  ", ":2: seed must be at least 0, not -1\n  ", ":3: rounds must be at least 1, not 0"),
    ),
    (
        "on one line",
        "seed: 0\nname: {}\nrounds: x\n",
        (": 4 mistakes\n  ", ":2: name must be text, not a section\n  ", ":3: rounds must be a whole number, not 'x'"),
    ),
]
