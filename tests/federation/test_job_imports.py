"""What FLARE would import into a job's process, and we keep out of it."""

import subprocess
import sys

import pytest

JOB = """
import sys
sys.argv = ["party", "this"]
from fedpower.federation import party
party.hold_on = lambda: None
party.runpy.run_module = lambda *args, **options: None
party.main()
from nvflare.apis.impl.wf_comm_server import WFCommServer
class Quiet:
    def log_warning(self, *words): raise AssertionError(words)
WFCommServer._cleanup_inflight_tensor_downloads(Quiet(), None)
print("torch" in sys.modules)
"""


@pytest.mark.devices
def test_a_job_ends_without_pytorch():
    """FLARE clears away tensors on their way at a job's end, for which it would import PyTorch."""
    pytest.importorskip("torch")
    said = subprocess.run([sys.executable, "-c", JOB], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout.strip()) == (0, "False"), said.stderr
