"""Generate Python source for codecs and splicers, compiled on first use.

Decoders and encoders are generated from message definitions, splicers from plans. Each is one flat
function without recursion or type checks, several times faster than interpreting the definition. The
generated functions call `wire.codec_runtime` and `wire.splice_runtime` for rare cases.

Modules:
  decoder  source that decodes a message to a dict
  encoder  source that encodes a dict as a message
  source   lines of source, and the function compiled from them
  stream   source that rewrites a frame while it arrives, as a generator
  walk     what `whole` and `stream` share: reading lengths, skipping fields, observing values
  whole    source that rewrites a frame that has arrived completely
"""
