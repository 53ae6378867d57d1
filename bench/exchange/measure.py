# SPDX-License-Identifier: Apache-2.0
"""One process of the measurement: python -m exchange.measure ROUNDS, with bench/ on the path.

Prints one line of JSON: nanoseconds per call, [kind of array][heading][call][round].
"""

import json
import sys

from . import build


def main():
    build.use()
    import timing

    from . import calls, inputs

    timing.pin()
    n_rounds = int(sys.argv[1])
    results = {}
    for kind, make in inputs.KINDS.items():
        arrays = make()
        headings = calls.contenders(arrays)
        results[kind] = {heading: timing.measure(group, n_rounds) for heading, group in headings.items()}
        calls.check_released(arrays)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
