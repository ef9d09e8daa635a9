"""Scrubs: read every copy of a log, and compare.

What it is: one slow pass over each partition, within a bandwidth. It reads each replica from its own broker,
and the tier and the backup where they are readable. Its events feed the rules about values, holes and
sequences.

What it promises: it continues where it stopped, and only reports what it has read. A place that does not
respond is left out and listed; what it has is not judged.

Modules:
  comparison       compares copies of a stretch, and names the offsets that differ
  partition_scrub  one pass over one partition
  places           replicas and object stores, read alike
  progress         what is due, and how far a pass has come
  sequences        whether producers' batches follow one another
  service          the scrub of one cluster
"""
