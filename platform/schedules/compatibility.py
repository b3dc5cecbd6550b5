"""Which experiments can have an asynchronous schedule."""

from hedgerow.algorithms.slots.middleware import ComposedAlgorithm
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.schedule_section import FedAsyncSchedule


def schedule_objection(experiment: Experiment, algorithm: ComposedAlgorithm, population: int) -> str | None:
    """Returns one sentence on why an experiment cannot have an asynchronous schedule; None if it can."""
    schedule, name, simulation = experiment.schedule, experiment.algorithm.name, experiment.simulation
    assert schedule is not None
    hyper = algorithm.hyper
    transforms = getattr(hyper, "transforms", ())
    if not algorithm.inner.supports_async:
        return f"schedule: a round of {name} is not one exchange that only averages updates; remove it"
    if not experiment.aggregation.rule.is_mean:
        return "schedule: it weights updates by their staleness, which only a mean does; set aggregation.rule to mean"
    attack = getattr(hyper, "attack", None)
    if attack is not None and (attack.colludes or isinstance(schedule, FedAsyncSchedule)):
        return f"simulation.attack.kind: {schedule.kind} has no rounds in which {attack.kind} could act; choose another"
    if isinstance(schedule, FedAsyncSchedule) and transforms:
        return "transforms: fedasync mixes models, not updates; remove them, or set schedule.kind to fedbuff"
    if experiment.fedex:
        return "schedule: FedEx compares the clients of a round, which start from different versions; remove `fedex`"
    if experiment.evaluation.follows:
        return "evaluation.model: with a schedule the server's model is evaluated; set it to server"
    if algorithm.init_client():
        return f"schedule: clients of {name} keep states between rounds with these settings; remove it"
    if simulation and simulation.deadline is not None:
        return "simulation.deadline: an asynchronous server waits for no client; remove it"
    if simulation and simulation.over_selection != 1:
        return "simulation.over_selection: an asynchronous server uses the update of every client; remove it"
    if (clients := experiment.concurrency(population)) > population:
        return f"schedule.concurrency: {clients} clients at work exceed the population of {population}; lower it"
    return None
