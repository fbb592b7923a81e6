"""Verifies what serves: on command, and when a searcher could not read it. What fails is not served any longer."""

from actors.errors import GenerationSuspect, NotFound
from actors.generation_builder.desk import Desk
from actors.generation_builder.publishing import Publisher, as_row
from actors.messages import Done, GenerationRef, ReportSuspect, Row, VerifyGeneration


class Verifier:
    """Verifies the serving view, file by file."""

    def __init__(self, desk: Desk, publisher: Publisher) -> None:
        self._desk = desk
        self._publisher = publisher

    async def verify(self, deadline_ns: int) -> Row:
        """Verify what serves now; raise GenerationSuspect, after the fall-back, when it is damaged."""
        serving = self._desk.notice.serving
        if serving is None:
            raise NotFound("no generation is published, so there is nothing to verify")
        message = VerifyGeneration(generation=serving.generation, delta=serving.delta)
        try:
            found = await self._desk.seat.call(message, GenerationRef, deadline_ns=deadline_ns)
        except GenerationSuspect as error:
            await self._publisher.fall_back(error)
            raise
        return as_row({"generation": found.generation, "delta": found.delta, "verified": True, "rows": found.rows})

    async def look_into(self, suspect: ReportSuspect) -> Done:
        """Verify a view that a searcher could not read, and fall back when it is damaged."""
        serving = self._desk.notice.serving
        if serving is not None and serving.view == suspect.view:
            message = VerifyGeneration(generation=serving.generation, delta=serving.delta)
            try:
                await self._desk.work(message, GenerationRef)
            except GenerationSuspect as error:
                await self._publisher.fall_back(error)
        return Done()
