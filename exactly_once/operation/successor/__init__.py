"""A new version of a stream continues after the last decided batch of the old one, exactly once.

``verdicts`` says whether it may (pure); ``retiring`` retires the old sink, and says where the new query begins.
"""

from exactly_once.operation.successor.retiring import Succession, examine, retire, starting_offsets

__all__ = ["Succession", "examine", "retire", "starting_offsets"]
