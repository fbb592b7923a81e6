"""The transcript's worker with calls that never end by themselves: a status, and an event that says so."""

from sqlite3 import Connection

import msgspec

from actors.child import CallContext, serve
from actors.frames import Setup
from actors.messages.base import Message
from actors.messages.transcript_appender import AppendEvents, TranscriptStatus
from actors.settings import RoomSetup
from actors.sql.database import transaction
from actors.transcript_appender.worker import TranscriptRoom

ENDLESS = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT count(*) FROM c"


class SlowRoom(TranscriptRoom):
    """A room with a query that only an interrupt ends."""

    def write(self, connection: Connection, message: Message, call: CallContext) -> msgspec.Struct:
        """Never finish the transaction of an event that says "endless"."""
        if isinstance(message, AppendEvents) and message.events[0].content == "endless":
            with transaction(connection, call):
                connection.execute("DELETE FROM events")
                connection.execute(ENDLESS).fetchone()
        return super().write(connection, message, call)

    def read(self, connection: Connection, message: Message, call: CallContext) -> msgspec.Struct:
        """Never finish the status."""
        if isinstance(message, TranscriptStatus):
            connection.execute(ENDLESS).fetchone()
        return super().read(connection, message, call)


def _room(setup: Setup) -> SlowRoom:
    return SlowRoom(msgspec.msgpack.decode(setup.settings, type=RoomSetup))


if __name__ == "__main__":
    serve(_room)
