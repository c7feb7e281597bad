"""What a setting may be: attrs validators that raise `ConfigError` with the key, what is expected, what was given."""

from __future__ import annotations

import re
from typing import Any

import attrs

from dafka.errors import ConfigError


def setting(default: Any, *checks: Any, key: str | None = None, converter: Any = None) -> Any:
    """An attribute of a section, under the attribute's name or under `key`."""
    return attrs.field(default=default, validator=list(checks), converter=converter, metadata={"key": key})


def key_of(attribute: attrs.Attribute[Any]) -> str:
    """The name of a setting in files."""
    return str(attribute.metadata.get("key") or attribute.name)


def at_least(minimum: int) -> Any:
    """A whole number of at least this."""

    def check(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if type(value) is not int or value < minimum:
            raise ConfigError(f"{key_of(attribute)}: expected a whole number of at least {minimum}, not {value!r}")

    return check


def one_of(*choices: str) -> Any:
    """One of these words."""

    def check(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value not in choices:
            raise ConfigError(f"{key_of(attribute)}: expected {' or '.join(choices)}, not {value!r}")

    return check


def check_text(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Text."""
    if not isinstance(value, str):
        raise ConfigError(f"{key_of(attribute)}: expected text, not {value!r}")


def check_texts(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """A tuple of texts."""
    if not isinstance(value, tuple) or not all(isinstance(each, str) for each in value):
        raise ConfigError(f"{key_of(attribute)}: expected texts, not {value!r}")


def check_host(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """The name or address of a host, or nothing."""
    check_text(_, attribute, value)
    if value and not re.fullmatch(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", value):
        raise ConfigError(
            f"{key_of(attribute)}: expected a host name or address, such as 10.0.0.7 or [fe80::1], not {value!r}"
        )


def check_endpoints(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """One endpoint or more."""
    if not isinstance(value, tuple) or not value:
        found = "none" if value == () else repr(value)
        raise ConfigError(f"{key_of(attribute)}: expected endpoints such as tcp://127.0.0.1:5556, not {found}")
    for endpoint in value:
        check_endpoint(_, attribute, endpoint)


def check_endpoint(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """An endpoint: tcp, ipc or inproc."""
    scheme, separator, rest = value.partition("://") if isinstance(value, str) else ("", "", "")
    is_tcp = scheme == "tcp" and rest.rpartition(":")[0] and rest.rpartition(":")[2]
    if not separator or not (is_tcp or (scheme in ("ipc", "inproc") and rest)):
        raise ConfigError(f"{key_of(attribute)}: expected an endpoint such as tcp://127.0.0.1:5556, not {value!r}")


def check_listen(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """A port, or an address and a port, or nothing."""
    found = (
        re.fullmatch(r"(?:([A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]):)?([0-9]{1,5})", value)
        if isinstance(value, str)
        else None
    )
    if value != "" and (found is None or int(found[2]) > 65535):
        raise ConfigError(
            f"{key_of(attribute)}: expected a port or an address with one, such as 9464 or 10.0.0.7:9464, not {value!r}"
        )


def as_endpoints(value: Any) -> Any:
    """One endpoint, or several with commas between them, or a list."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(value) if isinstance(value, list) else value
