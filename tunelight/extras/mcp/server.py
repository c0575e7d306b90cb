"""The server of the Model Context Protocol: argument checks and errors around :mod:`tunelight.extras.mcp.tools`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import ValidationError

from tunelight.errors import TunelightError, unknown
from tunelight.extras.mcp.tools import Tools

_READING: Final = ("list", "show", "compare")
_ENDING: Final = ("stop",)
_INSTRUCTIONS: Final = (
    "Hyperparameter sweeps of tunelight. `check` and `plan` a space, `run` it (it returns once the sweep has begun), "
    "then call `show` with the cursor `since` of its last answer. A sweep is named by its name, or 'last'; a trial by "
    "its number, or 'best'."
)


class SweepServer(MCPServer[Any]):
    """An MCPServer whose errors name the valid choices."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """Call a tool. Raises: ToolError with what was wrong, and what would be right."""
        tools = {tool.name: tool for tool in self._tool_manager.list_tools()}
        if name not in tools:
            raise ToolError(unknown("There is no tool", name, tools))
        valid = tools[name].parameters["properties"]
        for argument in arguments:
            if argument not in valid:
                raise ToolError(unknown(f"{name} has no argument", argument, valid, listed="It has"))
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            cause = error.__cause__
            if isinstance(cause, ValidationError):
                wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in cause.errors())
                takes = ", ".join(f"{key} ({_type(each)})" for key, each in valid.items())
                raise ToolError(f"Wrong arguments of {name}: {wrong}. It takes: {takes}.") from cause
            if isinstance(cause, TunelightError | OSError):
                raise ToolError(str(cause)) from cause
            raise


def _type(schema: Any) -> str:
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"] if each.get("type") != "null")
    return str(schema.get("type", "any"))


def make_server(folder: Path, storage: str) -> SweepServer:
    """Return the server for spaces below ``folder`` and sweeps in ``storage``."""
    server, tools = SweepServer("tunelight", instructions=_INSTRUCTIONS, log_level="WARNING"), Tools(folder, storage)
    for tool in (
        *(tools.check, tools.plan, tools.run, tools.list_, tools.show, tools.compare, tools.stop),
        *(tools.enqueue, tools.branch, tools.set_, tools.best, tools.report),
    ):
        name = tool.__name__.rstrip("_")
        hints = ToolAnnotations(
            read_only_hint=name in _READING, destructive_hint=name in _ENDING, open_world_hint=name not in _READING
        )
        server.tool(name, annotations=hints, structured_output=False)(tool)
    return server


def serve(folder: Path, storage: str) -> None:
    """Serve over standard input and output until the client hangs up; other output goes to standard error."""
    server = make_server(folder, storage)
    print("tunelight mcp: waiting for a client on standard input", file=sys.stderr)  # noqa: T201 - not the protocol's
    server.run("stdio")
