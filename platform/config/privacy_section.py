"""The `privacy` section of an experiment file: user-level differential privacy."""

from pydantic import Field

from hedgerow.algorithms.core.hyperparameters import Rule
from hedgerow.algorithms.transforms.clip import Clip
from hedgerow.algorithms.transforms.gaussian_noise import GaussianNoise
from hedgerow.algorithms.transforms.transform import Transform
from hedgerow.platform.common.section import Section
from hedgerow.platform.privacy.accounting import Accountant, PrivacyAccount, multiplier_for

MECHANISM = {"privacy.noise_multiplier", "privacy.target_epsilon", "privacy.noise_cohort", "clients_per_round"}
"""Keys that determine the noise and the sampling of a private round. Epsilon is that of rounds that are alike."""


class Privacy(Section):
    """User-level differential privacy: clipped updates, Gaussian noise on their sum, and cohorts in which each client
    takes part independently, with the same probability (McMahan et al., 2018).
    """

    clip: float = Field(gt=0, description="S, maximum norm of an update over all of its parts")
    noise_multiplier: float | None = Field(
        None, ge=0, description="z, standard deviation of the noise in units of S; null: solved for `target_epsilon`"
    )
    target_epsilon: float | None = Field(None, gt=0, description="epsilon after the last round; null: z is given")
    delta: float = Field(gt=0, lt=1, description="delta at which epsilon is reported; well below 1 / clients")
    accountant: Accountant = Field(
        "pld", description="accounting by privacy loss distributions, or by Renyi differential privacy, which is looser"
    )
    noise_cohort: int | None = Field(
        None,
        ge=1,
        description="expected number of clients per round of the deployment that is accounted for; the noise is scaled "
        "down to the smaller cohort of the simulation, which is not private itself; null: that of the simulation",
    )

    rules = (
        Rule(
            lambda privacy: (privacy.noise_multiplier is None) == (privacy.target_epsilon is None),
            "give either `noise_multiplier` or `target_epsilon`",
        ),
    )

    def account(self, clients: int, population: int, rounds: int) -> PrivacyAccount:
        """Accounting of a run, whose noise is solved for if it is not given. clients: expected number per round of the
        simulation. Raises UserError.
        """
        q = min(1.0, (self.noise_cohort or clients) / population)
        z = self.noise_multiplier
        if z is None:
            assert self.target_epsilon is not None
            z = multiplier_for(self.target_epsilon, q, rounds, self.delta, self.accountant)
        return PrivacyAccount(z, q, rounds, self.delta, self.accountant)

    def transforms(self, multiplier: float, clients: float) -> list[Transform]:
        """The clip and the noise. multiplier: z of the accounting; clients: expected number in the simulation."""
        scaled = multiplier * clients / (self.noise_cohort or clients)
        return [
            Clip(kind="clip", norm=self.clip),
            GaussianNoise(kind="gaussian_noise", multiplier=scaled, expected=clients, accumulate=True),
        ]
