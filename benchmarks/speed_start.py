"""A search's command up to the end of its first weight step: prints the seconds since it was started, less those of
importing torch.

`python speed_start.py SECONDS ARGUMENTS`: when it was started, by the clock, and what comes after `search.py`.
"""

import json
import os
import sys
import time

from nas.machine.startup import loading


def main() -> None:
    """Run the command; the process ends with its first step."""
    started, arguments = float(sys.argv[1]), sys.argv[2:]
    with loading():  # as search.py does
        importing = time.time()
        import torch

        elsewhere = time.time() - importing
        import nas.searching.search_loop
        import search

    take = nas.searching.search_loop.weight_step

    def take_one(*arguments: object) -> None:
        take(*arguments)
        print(json.dumps(time.time() - started - elsewhere), flush=True)
        os._exit(0)

    nas.searching.search_loop.weight_step = take_one
    torch.set_num_threads(1)
    search.main(arguments)


if __name__ == "__main__":
    main()
