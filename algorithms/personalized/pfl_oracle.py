"""Oracle of PFL (thesis, chapter 3): all clients' samples in one place, with the same adaptation."""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from hedgerow.algorithms.core.client_data import BatchSpec
from hedgerow.algorithms.core.messages import Cohort
from hedgerow.algorithms.federated.central import Central
from hedgerow.algorithms.personalized.personalized_algorithm import Personal, PersonalSGD


class PFLOracle(Personal, Central):
    """Centralised SGD on sum_i f_i(T_i(w)); each mini-batch comes from one client, drawn anew [Acar2023].

    Nothing is transmitted.
    """

    class Hyper(PersonalSGD, Central.Hyper):
        starts: Literal[1] = Field(1, description="always 1: one model")  # type: ignore[assignment]

    def batches(self, cohort: Cohort) -> dict[str, BatchSpec]:
        return {"train": replace(self.hyper.batches["train"], pooled_from=range(cohort.population))}
