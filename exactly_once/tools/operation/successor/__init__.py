"""A sink that takes the place of another: ``verdicts`` are pure, ``old_sink`` reads."""
