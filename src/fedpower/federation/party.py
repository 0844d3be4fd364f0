"""The process of a party: FLARE's server or client, which ends when its supervisor does."""

import runpy
import sys

from fedpower.federation.lifeline import end_with_parent


def main() -> None:
    """Run the module named first on the command line as if it had been started itself."""
    end_with_parent()
    module, sys.argv = sys.argv[1], sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
