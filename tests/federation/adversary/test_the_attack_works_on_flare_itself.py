"""The controls: what is refused in the other files succeeds against FLARE's own client."""

from contextlib import contextmanager

import pytest
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel
from nvflare.fuel.sec.audit import AuditService
from nvflare.private.defs import SysCommandTopic
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from studies import write_study

from adversary.hostile import admin, cell_request, new_cell, wait_for
from fedpower.federation.kits import make_kits
from fedpower.federation.local import free_port
from fedpower.federation.study_file import read_study

pytestmark = pytest.mark.federation


class Engine:
    """As much of a FLARE client's engine as its administration asks for."""

    @contextmanager
    def new_context(self):
        yield FLContext()


def test_a_silo_reads_another_s_file_through_flare_s_server_and_client(tmp_path):
    """Mutual TLS, valid certificates, FLARE's routing and request processors, and no authorisation."""
    AuditService.initialize(str(tmp_path / "audit.log"))
    path = tmp_path / "study.toml"
    path.write_text(write_study(tmp_path).with_coordinator("localhost", free_port(), {}))
    study = read_study(path)
    make_kits(study, tmp_path / "kits")
    secret = tmp_path / "rows.csv"
    secret.write_text("a secret row\n")
    cells = []
    try:
        for party, name in (("coordinator", "server"), ("north", "north"), ("east", "east")):
            cells.append(new_cell(tmp_path / "kits" / party / "tls", name, study.port))
            CoreCell.ALL_CELLS.pop(name)  # cells of one process would talk past the network
            cells[-1].start()
        server, north, east = cells
        agent = FedAdminAgent("north", north, Engine())
        for processor in ClientRequestProcessors.request_processors:
            agent.register_processor(processor)
        wait_for(lambda: {"north", "east"} <= set(server.agents), "both silos")
        shell = admin(SysCommandTopic.SHELL, f"head {secret}")
        stolen = cell_request(east, "north", CellChannel.CLIENT_MAIN, "admin", shell)
        assert "a secret row" in str(stolen.body)
    finally:
        for each in cells:
            each.stop()
