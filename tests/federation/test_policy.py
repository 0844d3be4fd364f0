"""What a site lets FLARE do, asked of FLARE's own judges; and what a job may say."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fedpower.engines.flare import TASK
from fedpower.federation.apps import StudyController, StudySilo
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.workspace import Workspace
from nvflare.app_common.logging.constants import is_log_streaming_allowed
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.fuel.sec.authz import AuthzContext, Person
from nvflare.security.security import COMMAND_CATEGORIES, FLAuthorizer

from fedpower.errors import InputError
from fedpower.federation import apps, policy

RUN = "0123456789abcdef"
RUNNER = Person("runner@fedpower.local", "coordinator", policy.ROLE)
COMMANDS = sorted(COMMAND_CATEGORIES)
Write = Callable[[Path], None]
SITES = {"silo": policy.write_silo_policy, "coordinator": policy.write_coordinator_policy}


def kit_with(write: Write, folder: Path) -> Path:
    """Return a kit as FLARE's provisioning leaves it, with the site's policy written over it."""
    (folder / "startup").mkdir(parents=True)
    (folder / "local").mkdir()
    generous = {"format_version": "1.0", "permissions": {policy.ROLE: "any"}}
    (folder / "local" / "authorization.json.default").write_text(json.dumps(generous))
    (folder / "local" / "resources.json").write_text(json.dumps({"class_allow_list": ["*"]}))
    write(folder)
    return folder


def judge(kit: Path) -> FLAuthorizer:
    return FLAuthorizer("north", json.loads((kit / "local" / "authorization.json").read_text()))


def may(kit: Path, right: str, user: Person = RUNNER, submitter: Person = RUNNER) -> bool:
    allowed, _ = judge(kit).authorize(AuthzContext(right, user, submitter))
    return bool(allowed)


def context(kit: Path) -> FLContext:
    made = FLContext()
    made.set_prop(FLContextKey.WORKSPACE_OBJECT, Workspace(str(kit), "north"), private=True)
    made.set_prop(FLContextKey.WORKSPACE_ROOT, str(kit), private=True)
    made.set_prop(ReservedKey.IDENTITY_NAME, "north", private=True)
    return made


@pytest.fixture
def silo(tmp_path: Path) -> Path:
    return kit_with(policy.write_silo_policy, tmp_path / "north")


@pytest.fixture
def coordinator(tmp_path: Path) -> Path:
    return kit_with(policy.write_coordinator_policy, tmp_path / "coordinator")


def test_at_a_silo_a_runner_may_submit_the_job_and_nothing_else(silo: Path) -> None:
    assert may(silo, "submit_job")
    for right in (*COMMANDS, "byoc", "view", "operate", "shell_commands", "manage_job"):
        assert not may(silo, right), right


@pytest.mark.parametrize("role", ["project_admin", "org_admin", "member", ""])
@pytest.mark.parametrize("site", SITES)
def test_other_roles_of_flare_may_do_nothing_anywhere(site: str, role: str, tmp_path: Path) -> None:
    kit = kit_with(SITES[site], tmp_path / "kit")
    someone = Person("admin@elsewhere", "north", role)
    for right in (*COMMANDS, "submit_job", "byoc", "app_command"):
        assert not may(kit, right, someone), right


def test_at_the_coordinator_a_runner_looks_after_its_own_jobs_and_runs_no_code_or_commands(
    coordinator: Path,
) -> None:
    other = Person("other@fedpower.local", "coordinator", policy.ROLE)
    assert may(coordinator, "submit_job")
    for right in ("abort_job", "download_job", "app_command"):
        assert may(coordinator, right)
        assert not may(coordinator, right, RUNNER, submitter=other)
    for right in ("byoc", "cat", "ls", "grep", "head", "tail", "pwd", "restart", "shutdown"):
        assert not may(coordinator, right), right


@pytest.mark.parametrize("site", SITES)
def test_exactly_one_class_may_be_loaded_at_a_site(site: str, tmp_path: Path) -> None:
    kit = kit_with(SITES[site], tmp_path / "kit")
    own = {"silo": policy.EXECUTOR, "coordinator": policy.CONTROLLER}[site]
    other = {"silo": policy.CONTROLLER, "coordinator": policy.EXECUTOR}[site]
    judge = ComponentPathAuthorizer()
    judge.authorize_component_config({"path": own}, fl_ctx=context(kit))
    strangers = [
        other,
        f"{own}2",
        "fedpower.federation.apps",
        "fedpower.federation.processes.start",
        "subprocess.Popen",
        "os.system",
        "nvflare.app_common.executors.statistics.statistics_executor.StatisticsExecutor",
        "nvflare.app_common.logging.job_log_streamer.JobLogStreamer",
    ]
    for path in strangers:
        with pytest.raises(UnsafeComponentError, match="not in allow_list"):
            judge.authorize_component_config({"path": path}, fl_ctx=context(kit))
        with pytest.raises(UnsafeComponentError):
            judge.authorize_component_config({"name": path}, fl_ctx=context(kit))


def test_the_two_classes_are_there_and_are_what_they_should_be() -> None:
    assert f"{apps.__name__}.{StudyController.__name__}" == policy.CONTROLLER
    assert f"{apps.__name__}.{StudySilo.__name__}" == policy.EXECUTOR


def test_a_silo_s_logs_are_not_streamed(silo: Path) -> None:
    assert is_log_streaming_allowed(context(silo)) is False
    resources = json.loads((silo / "local" / "resources.json").read_text())
    resources.pop("allow_log_streaming")
    (silo / "local" / "resources.json").write_text(json.dumps(resources))
    assert is_log_streaming_allowed(context(silo)) is True  # FLARE's default, which is not ours


@pytest.mark.parametrize("site", SITES)
def test_what_the_kit_brought_along_is_replaced(site: str, tmp_path: Path) -> None:
    kit = kit_with(SITES[site], tmp_path / "kit")
    assert not list((kit / "local").glob("*.default"))
    before = {path.name: path.read_text() for path in (kit / "local").iterdir()}
    (kit / "local" / "authorization.json").write_text("{}")
    (kit / "local" / "resources.json").write_text('{"class_allow_list": ["*"]}')
    SITES[site](kit)
    assert {path.name: path.read_text() for path in (kit / "local").iterdir()} == before


def texts(value: Any) -> Iterator[str]:
    """Yield every text inside a nested value, keys left out."""
    if isinstance(value, dict):
        for each in value.values():
            yield from texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)
    elif isinstance(value, str):
        yield value


def test_a_job_names_the_two_classes_and_a_run_and_brings_nothing_else(tmp_path: Path) -> None:
    files = policy.job(RUN, "heart")
    own = {"heart", "@ALL", "study", TASK}
    assert set(texts(files)) == {*own, policy.CONTROLLER, policy.EXECUTOR, RUN}
    server = files["app/config/config_fed_server.json"]
    assert [each["args"] for each in server["workflows"]] == [{"run": RUN}]
    (executor,) = files["app/config/config_fed_client.json"]["executors"]
    assert executor["executor"]["args"] == {}
    policy.write_job(tmp_path / "job", RUN, "heart")
    written = {path for path in (tmp_path / "job").rglob("*") if path.is_file()}
    assert {str(path.relative_to(tmp_path / "job")) for path in written} == set(files)
    assert all(path.suffix == ".json" for path in written)


@pytest.mark.parametrize(
    "run",
    [
        "", "..", "../../etc/passwd", "/etc/passwd", "0123456789abcde", "0123456789abcdef0",
        "0123456789ABCDEF", "0123456789abcdeg", "0123456789abcdef\n", "01234567/9abcdef",
        "٠١٢٣٤٥٦٧٨٩٠١٢٣٤٥", 17, None, ["0123456789abcdef"],
    ],
)  # fmt: skip
def test_a_run_that_is_not_16_hexadecimal_digits_is_refused(run: Any) -> None:
    with pytest.raises(InputError, match=r"a run must be named by 16 hexadecimal digits, got .*;"):
        StudyController(run)


def test_a_run_of_16_hexadecimal_digits_is_taken() -> None:
    assert StudyController(RUN)._run == RUN
