"""Live table of a search in a notebook."""

from typing import Any

from hedgerow.platform.common.numbers import percent
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.ui.notebook import Display, bar
from hedgerow.searchspaces.results.search_table import SearchTable

LIMIT = 20
"""Maximum number of trials shown, best first."""


class NotebookTable(SearchTable):
    """Live table of the trials as HTML, replaced in place."""

    def __init__(self, name: str, rounds: int, labels: list[str], **settings: Any):
        super().__init__(name, rounds, labels, **settings)
        self._display = Display()
        self._note = ""

    def __enter__(self) -> "NotebookTable":
        self._display.show(self._html, now=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._note = ""
        self._display.show(self._html, now=True)

    def trial(self, index: int, record: RoundRecord) -> None:
        super().trial(index, record)
        self._display.show(self._html)

    def state(self, index: int, text: str) -> None:
        super().state(index, text)
        self._display.show(self._html)

    def hedge(self, record: RoundRecord) -> None:
        super().hedge(record)
        self._display.show(self._html)

    def _weight(self, weight: float) -> str:
        return percent(weight)

    def note(self, text: str) -> None:
        self._note = text
        self._display.show(self._html, now=True)

    def _print(self, line: str) -> None:
        """Prints nothing, because the table contains this information."""

    def _html(self) -> str:
        order = self._order()
        table = self._table(order[:LIMIT]).html()
        more = f"<p>... and {len(order) - LIMIT} more</p>" if len(order) > LIMIT else ""
        line = bar(self.name, self._done, len(order) * self.rounds, f"{self._header()}  {self._note}")
        return f"<div>{line}{table}{more}</div>"
