"""The Model Context Protocol on the same pipe: the `initialize` eras, and five tools over the native methods. Pure.

Supported revisions are those that begin with `initialize` (2024-11-05 to 2025-11-25). A client that opens with the
stateless era's `server/discover` is told that the method is unknown and falls back. Business failures of a tool
are results with `isError`, so that the model can read the hint and react; only a broken request is a JSON-RPC error.
"""

from collections.abc import Callable

import msgspec

from actors.errors import BulkheadError, InvalidParams
from actors.redaction import RECALL_BEGIN, RECALL_END
from supervisor.rpc import Id, Request, error_data, suggest

PROTOCOL_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
INSTRUCTIONS = (
    "Long-term memory of this agent: conversations (events), distilled notes (units) and markdown documents. "
    "Call memory_search before answering about earlier work, people, preferences or decisions; follow a hit up with "
    "memory_get; keep what should be remembered with memory_store. Every search reply says how complete it is."
)

Arguments = dict[str, object]


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool: what a client lists, and how its arguments become a native request."""

    name: str
    title: str
    description: str
    properties: dict[str, object]
    required: tuple[str, ...]
    method: str
    to_params: Callable[[Arguments], Arguments]
    read_only: bool
    reports_progress: bool = False
    recalls: bool = False

    def listed(self) -> dict[str, object]:
        """Return the tool as tools/list shows it."""
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": {
                "type": "object",
                "properties": self.properties,
                "required": list(self.required),
                "additionalProperties": False,
            },
            "annotations": {
                "title": self.title,
                "readOnlyHint": self.read_only,
                "destructiveHint": False,
                "idempotentHint": self.read_only,
                "openWorldHint": False,
            },
        }


_FILTERS = {"session_id": "session_ids", "tags": "tags", "since": "since", "until": "until", "path": "path"}


def _search_params(given: Arguments) -> Arguments:
    filters: Arguments = {}
    for name, member in _FILTERS.items():
        if name in given:
            filters[member] = [given[name]] if name == "session_id" else given[name]
    rest = {name: value for name, value in given.items() if name not in _FILTERS}
    return {**rest, "filters": filters}


def _store_params(given: Arguments) -> Arguments:
    return {"type": "summary", "scope": "global", **given}


def _rebuild_params(given: Arguments) -> Arguments:
    return {"wait": True, **given}


def _as_it_is(given: Arguments) -> Arguments:
    return given


_STRING = {"type": "string"}
_STRINGS = {"type": "array", "items": _STRING}
_COUNT = {"type": "integer", "minimum": 1}

TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(
            name="memory_search",
            title="Search memory",
            description=(
                "Search everything that is remembered: conversation events, units (profiles, summaries, skills, plans) "
                "and markdown documents. Hybrid of keywords and meaning, English and Chinese. Returns hits with a "
                "snippet, a score in 0..1, a citation and an id for memory_get. `degraded` and `behind` say what may "
                "be missing; `low_confidence` says that nothing fits well."
            ),
            properties={
                "query": {**_STRING, "description": "what to look for, in plain words or exact identifiers"},
                "limit": {**_COUNT, "maximum": 50, "description": "how many hits (default 10)"},
                "corpora": {
                    "type": "array",
                    "items": {"type": "string", "enum": ["events", "units", "documents"]},
                    "description": "where to look (default: everywhere)",
                },
                "mode": {"type": "string", "enum": ["hybrid", "keyword", "vector"]},
                "session_id": {**_STRING, "description": "only this conversation"},
                "tags": {**_STRINGS, "description": "all of these tags"},
                "since": {**_STRING, "description": "not before this time, RFC 3339 or a date"},
                "until": {**_STRING, "description": "before this time, RFC 3339 or a date"},
                "path": {**_STRING, "description": "documents whose path begins with this"},
            },
            required=("query",),
            method="memory.search",
            to_params=_search_params,
            read_only=True,
            recalls=True,
        ),
        Tool(
            name="memory_get",
            title="Read memory",
            description=(
                "Return one remembered item in full: by the id of a hit, or lines of a markdown document by path. "
                "Give either id or path."
            ),
            properties={
                "id": {**_STRING, "description": "id of a hit"},
                "path": {**_STRING, "description": "path of a document as in a hit"},
                "from_line": {**_COUNT, "description": "first line, 1-based"},
                "lines": {**_COUNT, "description": "how many lines"},
            },
            required=(),
            method="memory.get",
            to_params=_as_it_is,
            read_only=True,
            recalls=True,
        ),
        Tool(
            name="memory_store",
            title="Remember",
            description=(
                "Keep a distilled piece of knowledge as a unit. Durable when this returns, findable at once. "
                "To correct an earlier unit give its unit_id: the old version stays in its history."
            ),
            properties={
                "text": {**_STRING, "description": "what to remember, in full sentences"},
                "type": {"type": "string", "enum": ["profile", "summary", "skill", "plan"]},
                "scope": {"type": "string", "enum": ["user", "session", "global"]},
                "tags": _STRINGS,
                "session_id": {**_STRING, "description": "the conversation it came from"},
                "event_refs": {**_STRINGS, "description": "ids of the events it rests on"},
                "confidence": {"type": "number", "minimum": 0, "maximum": 1},
                "unit_id": {**_STRING, "description": "the unit to correct"},
                "expected_version": {"type": "integer", "minimum": 0},
                "request_id": {**_STRING, "description": "makes a retry return the first result"},
            },
            required=("text",),
            method="unit.put",
            to_params=_store_params,
            read_only=False,
        ),
        Tool(
            name="memory_status",
            title="Memory status",
            description="Say whether the memory is ready, how far the index is, and what is wrong if something is.",
            properties={},
            required=(),
            method="system.status",
            to_params=_as_it_is,
            read_only=True,
        ),
        Tool(
            name="memory_reindex",
            title="Rebuild the index",
            description=(
                "Build the search index anew from all that is stored. Rarely needed: it follows by itself, and is "
                "rebuilt when it is damaged. Searches go on meanwhile. Returns when it is published, failed or was "
                "cancelled; with a progress token it says how far it is. Leaving earlier does not end it."
            ),
            properties={
                "reason": {**_STRING, "description": "for the log"},
                "wait": {"type": "boolean", "description": "wait until it is through (default true)"},
            },
            required=(),
            method="index.rebuild",
            to_params=_rebuild_params,
            read_only=False,
            reports_progress=True,
        ),
    )
}


METHODS = frozenset({"initialize", "ping", "tools/list", "tools/call"})


def is_mcp(method: str) -> bool:
    """Say whether a method belongs to MCP; the native ones are dotted."""
    return method in METHODS


def native_method(request: Request) -> str:
    """Return the native method behind a request (itself, unless it is a tool call)."""
    if request.method != "tools/call":
        return request.method
    try:
        tool = TOOLS.get(msgspec.json.decode(request.params, type=ToolCall).name)
    except msgspec.DecodeError:
        return request.method
    return tool.method if tool is not None else request.method


class _Cancelled(msgspec.Struct):
    """The parameters of notifications/cancelled."""

    request_id: int | str = msgspec.field(name="requestId")


def cancelled_id(raw: msgspec.Raw) -> Id | None:
    """Return which request a cancellation means; None when it does not say."""
    try:
        return msgspec.json.decode(raw, type=_Cancelled).request_id
    except msgspec.DecodeError:
        return None


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """`_meta` of a request, as far as it matters here."""

    progress_token: int | str | None = msgspec.field(name="progressToken", default=None)


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of tools/call."""

    name: str
    arguments: dict[str, object] = {}
    meta: Meta = msgspec.field(name="_meta", default=Meta())


class Initialize(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of initialize that matter here."""

    protocol_version: str = msgspec.field(name="protocolVersion", default=PROTOCOL_VERSIONS[0])


def initialize_result(raw: msgspec.Raw, version: str) -> dict[str, object]:
    """Answer initialize: the client's revision when it is known, else the newest one we speak."""
    try:
        asked = msgspec.json.decode(raw if bytes(raw) else b"{}", type=Initialize).protocol_version
    except msgspec.DecodeError as error:
        raise InvalidParams(f"initialize: {error}") from error
    return {
        "protocolVersion": asked if asked in PROTOCOL_VERSIONS else PROTOCOL_VERSIONS[0],
        "capabilities": {"tools": {"listChanged": False}},
        "serverInfo": {"name": "bulkhead", "title": "Bulkhead memory", "version": version},
        "instructions": INSTRUCTIONS,
    }


def list_tools() -> dict[str, object]:
    """Answer tools/list: always the same tools in the same order."""
    return {"tools": [tool.listed() for tool in TOOLS.values()]}


def native_request(raw: msgspec.Raw) -> tuple[Tool, msgspec.Raw]:
    """Turn tools/call into the native method's parameters; raise InvalidParams with a suggestion."""
    try:
        call = msgspec.json.decode(raw if bytes(raw) else b"{}", type=ToolCall)
    except msgspec.DecodeError as error:
        raise InvalidParams(f"tools/call: {error}") from error
    tool = TOOLS.get(call.name)
    if tool is None:
        raise InvalidParams(f"tools/call: unknown tool {call.name!r}{suggest(call.name, TOOLS)}")
    params = tool.to_params(dict(call.arguments))
    if tool.reports_progress and params.get("wait") is True and call.meta.progress_token is not None:
        params["progress_token"] = call.meta.progress_token
    return tool, msgspec.Raw(msgspec.json.encode(params))


def check_arguments(raw: msgspec.Raw) -> None:
    """Refuse arguments that a tool does not have, naming the nearest one that it has."""
    call = msgspec.json.decode(raw, type=ToolCall)
    tool = TOOLS[call.name]
    for name in call.arguments:
        if name not in tool.properties:
            raise InvalidParams(f"{tool.name}: unknown argument {name!r}{suggest(name, tool.properties)}")
    for name in tool.required:
        if name not in call.arguments:
            raise InvalidParams(f"{tool.name}: argument {name!r} is missing")


def tool_result(result: object, tool: Tool) -> dict[str, object]:
    """Wrap a native result: as text for every client, and as structured content for the newer ones.

    What was recalled stands between the markers by which it is known when a host sends the conversation back to us.
    """
    encoded = msgspec.json.encode(result)
    if tool.recalls:
        begin, end = msgspec.json.encode({"begin": RECALL_BEGIN}), msgspec.json.encode({"end": RECALL_END})
        encoded = begin[:-1] + b"," + encoded[1:-1] + b"," + end[1:]
    return {
        "content": [{"type": "text", "text": encoded.decode()}],
        "structuredContent": msgspec.Raw(encoded),
        "isError": False,
    }


def tool_failure(error: BulkheadError) -> dict[str, object]:
    """Wrap an operating error so that the model can react to it."""
    members = {"error": error.message, "code": error.code, **error_data(error)}
    return {
        "content": [{"type": "text", "text": msgspec.json.encode(members).decode()}],
        "structuredContent": members,
        "isError": True,
    }
