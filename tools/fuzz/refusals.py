#!/usr/bin/env python
"""Counts the calls that PyTorch's operator tests call errors, by who refuses them: eager, and ours with it.

    python tools/fuzz/refusals.py                    all operators
    python tools/fuzz/refusals.py --filter '^topk'   some

Exit code 6 says that ours computes what eager refuses.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from tests.support.truth_table.refusals import operators_with_errors, refusals


def main() -> int:
    """Runs what the arguments ask for and prints a summary."""
    parser = argparse.ArgumentParser(description="calls that eager refuses")
    parser.add_argument("--filter", default="", help="a regular expression that the names of operators must hold")
    pattern = parser.parse_args().filter
    calls = [call for name in operators_with_errors() if re.search(pattern, name) for call in refusals(name)]
    refused = [call for call in calls if call.eager]
    computed = [call for call in refused if not call.code]
    codes = Counter(call.code for call in refused if call.code)
    print(
        f"{len(calls)} calls, eager refuses {len(refused)}, ours {len(refused) - len(computed)} of them: {dict(codes)}"
    )
    print(f"with the operator's name {sum(bool(call.op) for call in refused)}")
    for call in computed:
        print(f"computed {call.name}: eager {call.eager}")
    return 6 if computed else 0


if __name__ == "__main__":
    sys.exit(main())
