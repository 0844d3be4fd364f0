"""The process of a party, or of a job in it: FLARE's own module, which ends when its starter does."""

import os
import runpy
import sys

from fedpower.federation.lifeline import hold_on
from fedpower.federation.reach import end_when_unreached, party_address


def main() -> None:
    """Run the module named first on the command line as if it had been started itself."""
    hold_on()
    os.umask(0o077)  # FLARE's logs, stores and job folders are nobody else's to read
    module, sys.argv = sys.argv[1], sys.argv[1:]
    address = party_address(sys.argv)
    if address is not None:
        end_when_unreached(address)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
