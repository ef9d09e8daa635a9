"""Kafka's protocol, derived from Kafka's own message definitions.

There are two ways to handle a message. A *codec* decodes it to a dict and encodes it again. A *splicer*
rewrites the names in a frame and copies all other bytes unchanged, without decoding it. It follows a *plan*:
the list of a frame's fields, with the kinds of name among them, for one version of a request or response.

This package opens no socket and knows no broker; `penstock.kafka` does.

It promises that bytes it cannot read are refused with an error that names the party at fault. Lengths and
counts are checked against the bytes left before anything is allocated. Unknown tagged fields survive
decoding and encoding unchanged.

Modules:
  api_surface        prints which kinds of name each API can carry
  codec              messages as plain dicts, in every version
  codec_runtime      functions that generated codecs call
  codegen            generates the source of codecs and splicers
  compiled           runs the gateway's data path as machine code where it is compiled
  compression        gzip, snappy, lz4 and zstd as in record batches
  consumer_protocol  renames topics in subscriptions and assignments of classic groups
  definitions        Kafka's message definitions, from its jars
  digest             the batch digest: one hash of a stretch of log, equal in every copy
  encoding_errors    finds the value that cannot be encoded
  error_codes        Kafka's error codes, and which of them to retry
  fetch_fast_path    recognizes Fetch frames that need no rewriting
  field_observer     which values a splicer reports from the frames it rewrites
  field_rules        which fields carry a name, and of what kind
  frames             requests and responses with size and header
  logs               records of Kafka's own logs
  names              the interface that maps names between client and broker
  plans              where the names are in a frame
  produce_fast_path  the parts in which repeated Produce frames differ
  records            record batches: read, check, write
  splice             applies plans to the bytes of a connection
  splice_runtime     functions that generated splicers call
  version_diff       prints what changed between two Kafka versions
"""

from penstock.wire.compiled import prefer_compiled as _prefer_compiled

_prefer_compiled(__name__, __path__)
