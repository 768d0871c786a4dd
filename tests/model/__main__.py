"""``python -m tests.model [-v] [--long]``: what the model finds; -v prints each counterexample step by step."""

from __future__ import annotations

import sys

from tests.model.code import RULES
from tests.model.explore import explore
from tests.model.scenarios import COUNTEREXAMPLES, SCENARIOS
from tests.model.state import Rules


def main(arguments: list[str]) -> None:
    """Explore every size with all rules, then show what each rule is for."""
    verbose, long = "-v" in arguments, "--long" in arguments
    print("With all rules:")
    for scenario in SCENARIOS.values():
        if scenario.long and not long:
            continue
        found = explore(scenario, lives=True)
        print(
            f"  {scenario.name}: {found.violation or 'no violation'}, {found.states:,} states in {found.seconds:.1f} s",
            flush=True,
        )
        for n, line in enumerate(found.path, 1):
            print(f"      {n:2} {line}")
    print("Without a rule:")
    for off, name, _ in COUNTEREXAMPLES:
        found = explore(SCENARIOS[name], Rules()._replace(**dict.fromkeys(off, False)))
        for rule in off:
            print(f"  {rule}: {RULES[rule][0]}")
        print(f"    else: {found.violation or 'no violation'} ({name}, {len(found.path)} steps)", flush=True)
        for n, line in enumerate(found.path if verbose else [], 1):
            print(f"      {n:2} {line}")


if __name__ == "__main__":
    main(sys.argv[1:])
