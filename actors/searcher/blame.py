"""What a search answers for when a worker dies with it in hand.

The second death for which it answers condemns a search: it is answered by keyword from then on, whoever asks. What the
workers are given fills no queue there, so everything in hand was being executed. Rules:

* when the worker said which call it was, that one answers, each time;
* else a search that was alone in the worker does, and one that is in hand at a second death, alone or not;
* without such proof a search answers once, however many workers it is repeated on: both may have been killed from
  outside, and a search that is innocent shows it with its next answer;
* a search that one worker has answered is not to blame for the other one, which may end much later.
"""

from actors.quarantine import Quarantine, key_of
from actors.worker import WorkerDied

# Beside the searches of the mailbox: a search is refused there when the actor died with it, but not for its workers.
DOMAIN = b"search worker\0"


class Case:
    """One search on its way through the workers."""

    def __init__(self, quarantine: Quarantine, body: bytes) -> None:
        """Open a case; `body` is the encoded message of the client, by which its retries are recognised."""
        self._quarantine = quarantine
        self._key = key_of(DOMAIN + body)
        self._size = len(body)
        self._deaths = 0
        self._blamed = self._innocent = False

    @property
    def condemned(self) -> bool:
        """Say whether no worker may be given this search."""
        return self._quarantine.find(self._key) is not None

    def died(self, death: WorkerDied, *, query: bytes, alone: bool) -> bool:
        """Note that a worker died with it in hand, as the call `query`; say whether it is condemned now."""
        self._deaths += 1
        if self._innocent:
            return False
        if death.culprit is not None:
            guilty = death.culprit == query
        else:
            guilty = not self._blamed and (alone or self._deaths > 1)
        if not guilty:
            return False
        self._blamed = True
        return self._quarantine.blame(self._key, actor="searcher", kind="Search", size=self._size, cause=death.cause)

    def answered(self) -> None:
        """Note that a worker has answered it and lives."""
        self._innocent = True
        self._quarantine.acquit(self._key)
