"""The interface of serializers. Programs can write their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Serializer(ABC, Generic[_T]):
    """Turns objects of one type into the bytes of a record's value, and back."""

    @property
    @abstractmethod
    def content_type(self) -> str:
        """The media type of the bytes, such as `application/json`. Records of a `TypedTopic` carry it as a header."""

    @abstractmethod
    def dump(self, value: _T) -> bytes:
        """Return the bytes of an object.

        Args:
            value: The object.

        Returns:
            Its bytes.

        Raises:
            RecordError: The object is not of the serializer's type, or cannot be written.
        """

    @abstractmethod
    def load(self, data: bytes) -> _T:
        """Return the object that bytes encode.

        Args:
            data: The bytes.

        Returns:
            The object.

        Raises:
            RecordError: The bytes are not an object of the serializer's type.
        """
