"""Section `search.budget`: the work after which a search ends."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from hedgerow.algorithms.core.hyperparameters import Rule
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.section import Section


class Budget(Section):
    """Work after which a search ends. A trial that trains completes its round, and no other round begins."""

    client_rounds: int | None = Field(
        None,
        ge=1,
        description="of all trials together: clients that take part in a round of a trial, each counted once",
    )
    seconds: float | None = Field(
        None, gt=0, description="of wall-clock time in which trials train or start, in all sessions together"
    )

    rules = (
        Rule(
            lambda budget: budget.client_rounds is None and budget.seconds is None,
            "`budget` has no value; set `client_rounds` or `seconds`",
        ),
        Rule(
            lambda budget: budget.client_rounds is not None and budget.seconds is not None,
            "`budget` has both `client_rounds` and `seconds`; remove one of them",
        ),
    )

    @property
    def limit(self) -> float:
        """Value of the key that is set."""
        return self.client_rounds or self.seconds or 0.0

    @property
    def unit(self) -> str:
        """The key that is set."""
        return "seconds" if self.client_rounds is None else "client_rounds"


@dataclass(frozen=True)
class FirstRounds:
    """Clients in a round of each trial that is known before the search starts. limit: of the budget."""

    limit: int
    clients: Sequence[int]

    @property
    def trials(self) -> str:
        """The trials, for a sentence."""
        return "a trial" if len(self.clients) == 1 else f"each of the {len(self.clients)} trials"

    def check(self) -> None:
        """Raises UserError when the budget is too small for them."""
        for rule in BUDGET_RULES:
            if objection := rule.objection(self):
                raise UserError(objection)


BUDGET_RULES = (
    Rule(
        lambda first: first.limit < sum(first.clients) and sum(first.clients),
        "search.budget.client_rounds: {limit} is less than one round of {trials}; set it to at least {found}",
    ),
)
