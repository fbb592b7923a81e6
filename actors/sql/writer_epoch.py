"""The fence around a file of the truth: whoever opened it last is its only writer.

Each opening counts up `writer_epoch` in the table `meta`, in the transaction of the opening. Every later transaction
of that connection reads the counter inside itself, under the write lock; when it is no longer its own number, another
process has opened the file since, and the transaction is refused. So a process that was stopped, taken for dead,
replaced and woken up again can't commit what its successor knows nothing of.

A process is the writer from the commit of its opening on, not before: on a full disk it may have to wait for that
(`truth_room.py`), and writes nothing until then.

The price is one lookup by primary key per transaction.
"""

from actors.child import StoreLost
from actors.errors import StoreBroken
from actors.sql import meta
from actors.sql.database import WriterConnection

COUNTER = "writer_epoch"


def take_over(connection: WriterConnection, what: str) -> int:
    """Make this connection the writer of its file; return its epoch. Must run inside the transaction of the opening,
    and counts when that is committed.

    From the next transaction on it is fenced: StoreLost (StoreBroken, not_executed) once another one has taken over.
    `what` names the file in that error.
    """
    epoch = meta.count_up(connection, COUNTER)
    connection.fence = lambda: require_epoch(connection, epoch, what)
    return epoch


def require_epoch(connection: WriterConnection, epoch: int, what: str) -> None:
    """Raise StoreLost when another writer has opened the file since."""
    current = meta.read_counter(connection, COUNTER)
    if current != epoch:
        raise StoreLost(
            StoreBroken(
                f"write refused: another writer has taken over {what} (writer_epoch is {current}, ours is {epoch})",
                outcome="not_executed",
                hint="repeat it; the process that was replaced leaves now",
            )
        )
