"""The run-time type checker of the tests: an int is accepted where a float is promised, as everywhere in Python."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
