"""The nouns of the platform: ids, names, errors, and the events on internal topics.

Values only. Nothing here does I/O, reads a clock or rolls a die; whatever needs the time or a
random number is given it. Every other package may import this one, and this one imports none.
"""
