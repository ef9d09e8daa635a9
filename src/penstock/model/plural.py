"""Counts with their noun in singular or plural, for messages."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """`1 broker`, `3 brokers`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
