"""Which slots fit an algorithm and its task, and what the slots of an algorithm cover."""

from collections.abc import Sequence

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.messages import Weighting
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.slots.slots import Slots, SlottedHyper
from hedgerow.algorithms.transforms.transform import Transform

OPTIMIZER = "optimizer"
"""Key of server state that holds the state of the server optimiser."""


def changes_updates(slots: Slots) -> bool:
    """Whether the slots change what clients send."""
    return bool(slots.transforms) or not slots.aggregation.rule.is_mean or slots.attack is not None


def weighting_of(inner: Algorithm, slots: Slots) -> Weighting | None:
    """Returns the client weights that the slots set; None: those of the algorithm.

    Unless the file sets weights, robust rules and noise at the server weight clients equally instead of by samples: the
    number of its samples is a client's own claim, and the noise is that of an unweighted mean.
    """
    aggregation = slots.aggregation
    is_default = aggregation.weighting is None and inner.weighting in (None, "samples")
    noisy = any(transform.adds_server_noise for transform in slots.transforms)
    return "uniform" if is_default and (noisy or not aggregation.rule.is_mean) else aggregation.weighting


def covered(inner: Algorithm, step: str, initial: Tree) -> Tree:
    """Returns trees of the shapes of a step's updates, by part; opaque parts are left out."""
    return {name: initial[part.like] for name, part in inner.parts[step].items() if part.kind != "opaque"}


def clip_before(transforms: Sequence[Transform], i: int) -> int | None:
    """Number of the clip that bounds the norm of the updates that transform i receives; None: there is none."""
    for j in reversed(range(i)):
        if transforms[j].is_clip:
            return j
        if not (transforms[j].keeps_bound or transforms[j].adds_server_noise):
            return None
    return None


def slots_objection(inner: Algorithm, hyper: SlottedHyper, initial: Tree) -> str | None:
    """Returns one sentence on why the slots do not fit the algorithm or its task; None if they do.

    initial: the server state of the algorithm before round 1.
    """
    name, aggregation, objective = hyper.name, hyper.aggregation, hyper.objective
    optimizer, rule = aggregation.server_optimizer, aggregation.rule
    if reason := _wrong_declaration(inner, hyper, initial):
        return reason
    if aggregation.weighting is not None and (inner.weighting == "own" or not (inner.parts or inner.weighting)):
        return f"aggregation.weighting: {name} defines its own client weights; set it to null"
    if not aggregation.rule.is_mean and not inner.parts:
        return f"aggregation.rule: {name} does not average client updates; set its kind to mean"
    if reason := _attack_objection(inner, hyper):
        return reason
    if hyper.transforms and not inner.parts:
        return f"transforms: {name} does not average client updates; remove them"
    if not optimizer.is_plain and (inner.optimizes is None or OPTIMIZER in initial):
        return f"aggregation.server_optimizer: {name} has its own server step; remove it"
    if optimizer.momentum and inner.refuses_server_momentum:
        return f"aggregation.server_optimizer.momentum: {name} diverges with server momentum; set it to 0"
    if inner.accumulates and aggregation.weighting == "samples":
        return f"aggregation.weighting: the server state of {name} weights clients equally; set it to uniform"
    if inner.accumulates and not aggregation.rule.is_mean:
        return f"aggregation.rule: it would permanently bias the server state of {name}; set its kind to mean"
    if not rule.uses_weights and aggregation.weighting == "samples":
        return f"aggregation.weighting: {rule.kind} treats all clients equally; set it to uniform"
    if not rule.uses_weights and inner.weighting == "own":
        return f"aggregation.rule: {rule.kind} treats clients equally, and {name} weights them; choose another rule"
    if not aggregation.rule.is_mean and inner.has_opaque_parts:
        return f"aggregation.rule: {name} sends values that only a mean can combine; set its kind to mean"
    for i in range(len(hyper.transforms)):
        if reason := _transform_objection(inner, hyper, initial, i):
            return reason
    if objective is not None:
        if not inner.training_steps:
            return f"objective: {name} has its own loss; remove it"
        if inner.trains_on == "pool" and (reason := objective.centralized_incompatibility(inner.hyper)):
            return reason
        if reason := objective.incompatibility(inner.task):
            return reason
        if inner.trains_on == "pool" and objective.init_client(inner.task):
            return f"objective: {name} has no clients, but {objective.kind} needs client state; remove it"
    return None


def _wrong_declaration(inner: Algorithm, hyper: SlottedHyper, initial: Tree) -> str | None:
    """Returns which declaration that the slots need names a missing step or entry; None if all are right."""
    where, aggregation = f"algorithm.name: {type(inner).__name__}", hyper.aggregation
    entries = f"entries ({', '.join(initial)})"
    is_own = not type(inner).__module__.startswith("hedgerow.")
    if changes_updates(hyper) and not inner.parts and is_own and (doubt := inner.inferred.doubt):
        return f"{where}: the slots of this experiment need to know what its clients send, and {doubt}; declare `parts`"
    if aggregation.weighting is not None and not (inner.parts or inner.weighting) and is_own:
        return (
            f"{where}: aggregation.weighting needs to know whether `round` takes its weights from `self.weights`; "
            "declare `weighting` if it does"
        )
    needed = inner.parts if changes_updates(hyper) else {}
    for step, parts in needed.items():
        if not callable(getattr(inner, step, None)):
            return f"{where}.parts names the step {step!r}, which is not a method; correct its name"
        for name, part in parts.items():
            if part.like not in initial:
                return (
                    f"{where}.parts: {name!r} of {step!r} is like {part.like!r}, which is not in `init_server`; "
                    f"name one of its {entries}"
                )
    if not aggregation.server_optimizer.is_plain and inner.optimizes not in (None, *initial):
        return f"{where}.optimizes: {inner.optimizes!r} is not in `init_server`; name one of its {entries}"
    return None


def _attack_objection(inner: Algorithm, hyper: SlottedHyper) -> str | None:
    attack, name = hyper.attack, hyper.name
    if attack is None:
        return None
    if not inner.parts:
        return f"simulation.attack: {name} does not average client updates; remove it"
    if attack.flips_labels and inner.task.targets != "classes":
        return f"simulation.attack.kind: {attack.kind} needs one class per sample; choose another attack"
    if attack.colludes and inner.has_opaque_parts:
        return f"simulation.attack.kind: {name} sends values that {attack.kind} cannot change; choose another"
    return None


def _transform_objection(inner: Algorithm, hyper: SlottedHyper, initial: Tree, i: int) -> str | None:
    name, aggregation, transform = hyper.name, hyper.aggregation, hyper.transforms[i]
    remembers = type(inner).remember is not Algorithm.remember
    if transform.encodes and transform.joint:
        return f"transforms.{i}.kind: {transform.kind} is both `joint` and `encodes`; set one of them to False"
    if transform.has_error_feedback and remembers:
        return f"transforms.{i}.error_feedback: clients of {name} already keep their own state; set it to false"
    if transform.needs_bound and clip_before(hyper.transforms, i) is None:
        return (
            f"transforms.{i}: {transform.kind} needs updates of bounded norm; put a clip before it, and nothing "
            "between them that makes updates longer"
        )
    earlier = hyper.transforms[:i]
    if transform.quantizes and any(other.sparsifies for other in earlier):
        return f"transforms.{i}: {transform.kind} would also round the zeros that are not sent; put it first"
    if any(other.quantizes for other in earlier):
        if transform.has_error_feedback:
            return f"transforms.{i}.error_feedback: what it sends later is not quantised; set it to false"
        if not transform.sparsifies:
            return f"transforms.{i}: it would change quantised entries; put it before the quantisation"
    if transform.adds_server_noise:
        if any(not (other.keeps_bound or other.adds_server_noise) for other in hyper.transforms[i + 1 :]):
            return f"transforms.{i}: transforms after it may make updates longer than the clip; remove them"
        if inner.accumulates and not transform.may_accumulate:
            return f"transforms.{i}: its noise would accumulate in the server state of {name}; remove it"
        if inner.has_opaque_parts:
            return f"transforms.{i}: {name} also sends values that no noise protects; remove it"
        if not aggregation.rule.is_mean:
            return f"transforms.{i}: its noise is that of a mean; set aggregation.rule to mean"
        if inner.weighting == "own" or aggregation.weighting == "samples":
            return f"transforms.{i}: its noise is that of an unweighted mean; set aggregation.weighting to uniform"
    if transform.encodes and i + 1 < len(hyper.transforms):
        return f"transforms.{i}: it encodes updates, which later transforms cannot read; put it last"
    if transform.encodes and not aggregation.rule.is_mean:
        return f"transforms.{i}: encoded updates can only be averaged; set aggregation.rule to mean"
    if transform.encodes and remembers:
        return f"transforms.{i}: clients of {name} cannot know the update that the server decodes; remove it"
    for step, parts in inner.parts.items():
        like = covered(inner, step, initial)
        updates = [like] if transform.joint else [like[part] for part in parts if part in like]
        if reason := next((reason for update in updates if (reason := transform.incompatibility(update))), None):
            return f"transforms.{i}.{reason}"
    return None
