"""Handlers: their contract, functions and commands as handlers, and the registry that finds them."""

from holdfast.handlers.command import (
    COMMAND_KEY,
    CommandFailed,
    CommandHandler,
    CommandPayload,
    check_command,
    parse_command,
)
from holdfast.handlers.contract import Cancel, Handler, Host, JobContext, Snooze
from holdfast.handlers.dependencies import Depends
from holdfast.handlers.function import FunctionHandler
from holdfast.handlers.registry import HandlerRegistry

__all__ = [
    "COMMAND_KEY",
    "Cancel",
    "CommandFailed",
    "CommandHandler",
    "CommandPayload",
    "Depends",
    "FunctionHandler",
    "Handler",
    "HandlerRegistry",
    "Host",
    "JobContext",
    "Snooze",
    "check_command",
    "parse_command",
]
