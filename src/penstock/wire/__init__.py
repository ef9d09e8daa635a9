"""Kafka's protocol as data: one source of truth for everything that touches Kafka's bytes.

What it is: `definitions` (Kafka's own message definitions, read from its jars and packed into one
data file), `codec` (whole messages to and from plain dicts, every version), `records` (record
batches), and plans that rewrite names in other people's bytes without decoding them.

What it is not: it opens no socket, keeps no state and knows no broker; `penstock.kafka` does.

What it promises: bytes it does not understand are refused with a typed error that says whose
fault it is, never guessed at; a length that lies is refused before anything is allocated for it;
tagged fields it has no name for survive a decode and an encode unchanged.
"""

from penstock.wire.pump import prefer as _prefer

_prefer(__name__, __path__)
