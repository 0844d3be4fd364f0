"""The process of a party: FLARE's server or client, which ends when its supervisor does.

A supervisor that is killed outright cannot stop its child. A silo that went on without one would be
there twice once it is started again.
"""

import os
import runpy
import signal
import sys
import threading
import time

LOOK_S = 0.5


def main() -> None:
    """Run the module named first on the command line as if it had been started itself."""
    supervisor = os.getppid()
    threading.Thread(target=_watch, args=(supervisor,), daemon=True).start()
    module, sys.argv = sys.argv[1], sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _watch(supervisor: int) -> None:
    while os.getppid() == supervisor:
        time.sleep(LOOK_S)
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    main()
