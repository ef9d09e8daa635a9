"""One small asyncio client for the platform's own calls.

What it is: `connection` (one socket: TLS, login, version negotiation, pipelining), `client` (many
brokers: bootstrap, routing, retries) and, a module for each noun, the admin calls that the rest of
the platform needs as short typed functions.

What it is not: the data path of applications, which is confluent-kafka.

What it promises: a call ends in its answer or in a typed error within its time limit; a cancelled
call leaves the connection usable; nothing is retried that may have been done, unless doing it
twice is harmless.
"""
