"""Route for the settings of the running broker."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

import attrs

from dafka.config import Config
from dafka.http.api.registry import Answer, RequiredPermission, route
from dafka.http.api.schemas import AnyValue, Array, Boolean, Object, Text
from dafka.http.api.storage import hide_password
from dafka.http.server.messages import AnyResponse, Request, respond

DESCRIPTIONS = "setting_descriptions.json"
"""The file with the description of each setting, which `docs/generate.py` makes."""

SETTING = Object(
    "Setting",
    {
        "name": Text("Its name."),
        "value": AnyValue("Its value: a text, a number, true, false or a list of texts."),
        "is_default": Boolean("Whether that is its default."),
        "description": Text("What the setting does."),
    },
)

SECTION = Object("Section", {"name": Text("Its name."), "settings": Array(SETTING)})

SETTINGS = Object("Settings", {"sections": Array(SECTION)})


@route(
    "GET",
    "/settings",
    needs=RequiredPermission.ADMINISTRATOR,
    tag="Broker",
    answers={200: Answer("The settings.", SETTINGS)},
)
async def describe_settings(request: Request) -> AnyResponse:
    """Describe the settings of the running broker. They contain no secrets, only the names of their files."""
    return respond({"sections": describe_config(request.broker.config)})


def describe_config(config: Config) -> list[dict[str, Any]]:
    """Return the sections of a configuration in the schema `SECTION`."""
    descriptions = _load_descriptions()
    sections = []
    for section in attrs.fields(Config):
        given, defaults = getattr(config, section.name), getattr(Config(), section.name)
        settings = []
        for each in attrs.fields(type(given)):
            value, default = getattr(given, each.name), getattr(defaults, each.name)
            settings.append(
                {
                    "name": each.name,
                    "value": _describe_value(value),
                    "is_default": value == default,
                    "description": descriptions.get(section.name, {}).get(each.name, ""),
                }
            )
        sections.append({"name": section.name, "settings": settings})
    return sections


def _describe_value(value: object) -> object:
    if isinstance(value, tuple):
        return [hide_password(str(each)) for each in value]
    return hide_password(value) if isinstance(value, str) else value


@cache
def _load_descriptions() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(files("dafka.http.api").joinpath(DESCRIPTIONS).read_text("utf-8"))
    return found
