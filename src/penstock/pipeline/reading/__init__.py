"""Decodes records into rows, one Arrow block at a time, in Spark's Python workers.

What it is: decoders for each value format, and the functions that Spark maps over a partition.

What it is not: anything that needs a Spark session. Decoders are pickled to the workers, so they hold
only data.

What it promises: every record becomes a row, or a rejected record with its bytes and the reason; one bad
record does not slow down the rest of its block.

Modules:
  avro_protobuf    decoders for Avro, Protobuf and raw values
  blocks           decodes a block, isolating bad records; turns records into rows
  decoders         chooses the decoder of a source, and its columns
  json_values      the decoder for JSON, on Arrow's parser
  newest_by_key    drops superseded rows of a key before an upsert
  registry         the decoder for values of a schema registry
  usage            reads usage reports, reduced to hourly maxima
"""
