"""Every fenced block of every page: the test that runs it, or why none does."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.manual.following import ROOT

PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "conf").rglob("README.md")]
)
FENCED = re.compile(r"^ *```([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Picture:
    """Block that is not typed: a drawing, a layout, an index of the site."""


@dataclass(frozen=True)
class By:
    """The test that reads the page and runs it, as `file::name`."""

    test: str
    for_want_of: str = ""
    """Means that running the block unchanged would need; the test compares its names."""


@dataclass(frozen=True)
class Alike:
    """The test, or the step of CI, that does the same without reading the page."""

    test: str


DRAWN = Picture()
STARTS = "tests/manual/test_starts.py::test_"
EXAMPLES = "tests/troupemq/client/test_doc_examples.py::test_the_examples_of_"
OPERATIONS = "tests/manual/test_operations.py::test_the_"
TESTING = By(
    "tests/troupemq/test_pytest_plugin.py::test_order_service_of_the_page_is_tested_as_it_says"
)
DIST = Alike("tests/compat/test_dist.py::test_each_extra_installs_alone")
SPARK = By("tests/spark/test_with_spark.py::test_the_programs_of_the_page_do_what_it_describes")
WALK = By("tests/test_walk.py::test_the_walk_from_an_open_broker_to_two_accounts_works")
TLS = By("tests/manual/test_tls.py::test_the_certificates_of_the_page_work_for_servers_and_clients")
CLUSTER = By("tests/manual/test_cluster.py::test_the_commands_of_the_page_do_what_it_describes")
BACKUP = By("tests/manual/test_backup.py::test_the_commands_of_the_page_do_what_it_describes")
TUTORIAL = By("tests/manual/test_tutorial.py::test_the_tutorial_works_as_described")
MASTERS = "tests/spark/test_masters.py::test_the_settings_of_the_manual_are_accepted"
CONSOLE = "tests/manual/test_console.py::test_"
README = "tests/deploy/test_readmes.py::test_the_"
DEMONSTRATION = By(
    "tests/spark/test_masters.py::test_the_commands_of_the_manual_start_the_demonstrations_processes",
    "several machines; `make cluster-demo` has them on one",
)

Shown = Picture | By | Alike
SHOWN: dict[str, Sequence[tuple[str, Shown]]] = {
    "ARCHITECTURE.md": [("            troupemq/", DRAWN), (" clients ══ TCP", DRAWN)],
    "docs/administering.md": [('"""Print the topics', By(EXAMPLES + "administering"))],
    "CONTRIBUTING.md": [("storage/          errors", DRAWN)],
    "README.md": [
        ("make run SPARK=no", Alike(".ci/stranger")),
        (
            "pip wheel",
            Alike("tests/compat/test_wheel.py::test_the_installed_command_runs_anywhere"),
        ),
        (
            "troupemq namesrv -c conf/namesrv.conf  ",
            By(STARTS + "a_name_server_and_a_broker_take_a_message"),
        ),
        ("from troupemq import", By(EXAMPLES + "the_readme")),
        (
            "troupemq job run archive",
            Alike(
                "tests/compat/test_wheel.py::test_a_wheel_works_beside_packages_of_the_same_names"
            ),
        ),
    ],
    "docs/asyncio.md": [
        (
            "import asyncio",
            By(
                "tests/troupemq/client/aio/test_transaction.py"
                "::test_program_of_the_page_sends_what_it_says"
            ),
        )
    ],
    "docs/backup.md": [("troupemq store backup", BACKUP)] * 2
    + [("troupemq store restore", BACKUP)],
    "docs/cluster.md": [("troupemq broker", CLUSTER), ("troupemq admin clusterList", CLUSTER)],
    "docs/console.md": [
        ("pip install 'dist/troupemq", By(STARTS + "a_console_starts")),
        ("troupemq console -n … --bind", By(STARTS + "a_console_starts")),
        ("troupemq console -n … --host", By(STARTS + "a_console_starts")),
        ("- accessKey", By(CONSOLE + "the_account_of_the_page_is_valid_for_a_broker")),
        ("curl", By(CONSOLE + "a_program_reads_and_changes_with_a_token")),
        ('{"webhook"', By(CONSOLE + "the_alerts_of_the_page_are_parsed")),
    ],
    "docs/celery.md": [
        (
            "# shop.py",
            By("tests/troupemq/kombu/test_celery.py::test_worker_of_the_page_runs_its_task"),
        )
    ],
    "docs/consuming.md": [("from troupemq import", By(EXAMPLES + "consuming"))] * 2,
    "docs/decisions/index.md": [(":", DRAWN)],
    "docs/lab/index.md": [(":maxdepth: 1", DRAWN)],
    "docs/index.md": [(":", DRAWN)] * 4,
    "docs/jobs.md": [
        (
            "troupemq job schedule",
            By(
                "tests/troupemq/cli/test_broker_jobs.py::test_the_commands_of_the_manual_reach_a_broker"
            ),
        ),
    ],
    "docs/metrics.md": [
        (
            "pip install 'dist/troupemq",
            By(STARTS + "metrics_are_served_at_the_address_of_the_page"),
        ),
        ("scrape_configs", By(STARTS + "metrics_are_served_at_the_address_of_the_page")),
    ],
    "docs/operations.md": [
        (
            "pip wheel",
            Alike("tests/compat/test_wheel.py::test_the_installed_command_runs_anywhere"),
        ),
        ("make dist", Alike("tests/test_wheels.py::test_the_client_alone_sends_and_consumes")),
        ("troupemq namesrv", By(STARTS + "a_name_server_and_a_broker_take_a_message")),
        (
            "from collections",
            By(
                "tests/compat/test_wheel.py"
                "::test_hooks_are_imported_from_a_wheel_as_the_documents_say"
            ),
        ),
        ("troupemq admin", By(OPERATIONS + "administrators_commands_do_what_the_page_describes")),
        (
            "troupemq admin consumerProgress",
            By(OPERATIONS + "commands_for_what_is_stuck_do_what_the_page_describes"),
        ),
        ("troupemq store check", By(OPERATIONS + "store_commands_do_what_the_page_describes")),
        ("troupemq store dump", By(OPERATIONS + "store_commands_do_what_the_page_describes")),
        (
            "troupemq namesrv -c conf/namesrv.conf &",
            By(STARTS + "the_loop_of_the_manual_starts_two_masters_and_a_slave_each"),
        ),
    ],
    "docs/pipeline.md": [
        ("pip install 'dist/troupemq", DIST),
        *[("", SPARK)] * 11,
        (
            'pip install "pyspark',
            By("tests/spark/test_masters.py::test_the_commands_of_the_manual_prepare_a_machine"),
        ),
        ("export SPARK_LOCAL_IP", DEMONSTRATION),
        ("spark.master = spark", By(MASTERS)),
        ("spark.master = yarn", By(MASTERS, "a cluster of Hadoop")),
        ("spark.master = k8s", By(MASTERS, "a cluster of Kubernetes")),
    ],
    "docs/protocol.md": [("offset  size", DRAWN)],
    "docs/security.md": [("", WALK)] * 10 + [("", TLS)] * 4,
    "docs/sending.md": [("from ", By(EXAMPLES + "sending"))] * 4,
    "docs/storage.md": [("", DRAWN)] * 3,
    "docs/tasks.md": [
        (
            "# tasks.py\nimport asyncio",
            By("tests/troupemq/test_taskiq.py::test_program_of_the_page_runs"),
        ),
        (
            "# tasks.py\nimport dramatiq",
            By("tests/troupemq/test_dramatiq.py::test_program_of_the_page_runs"),
        ),
    ],
    "docs/testing.md": [
        ("# orders.py", TESTING),
        ("# test_orders.py", TESTING),
        ("# test_late_orders.py", TESTING),
    ],
    "docs/traces.md": [
        ("pip install 'dist/troupemq", By(STARTS + "a_broker_that_sends_spans_starts"))
    ],
    "docs/tutorial.md": [
        ("python3 -m venv", Alike("tests/compat/test_dist.py::test_each_extra_installs_alone")),
        *[("", TUTORIAL)] * 7,
    ],
    "conf/deploy/container/README.md": [
        (
            "make image",
            By(
                README + "image_readme_names_the_archive_that_make_writes",
                "a registry; tests/compat/test_image.py builds and runs it",
            ),
        )
    ],
    "conf/deploy/kubernetes/README.md": [
        (
            "kubectl",
            By(README + "kubernetes_readme_names_all_manifests_and_an_existing_set", "a cluster"),
        )
    ],
    "conf/deploy/systemd/README.md": [
        (
            "useradd",
            By(
                README + "systemd_readme_creates_what_the_units_use",
                "root, and a systemd that runs",
            ),
        )
    ],
}
"""Each block by how it begins, in the order of its page."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_each_code_block_of_a_page_is_run_or_excused(page: Path) -> None:
    found = [text for _, text in FENCED.findall(page.read_text("utf-8"))]
    told = SHOWN.get(name_of(page), ())
    assert found[len(told) :] == [], "name the test that runs it"
    for text, (begin, _) in zip(found, told, strict=True):
        assert text.startswith(begin)


@pytest.mark.parametrize("page", sorted(SHOWN))
def test_the_test_named_for_a_page_exists_and_reads_it(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    word = Path(page).parent.name if page.startswith("conf/") else Path(page).name
    for (kind, _), (_, shown) in zip(FENCED.findall(text), SHOWN[page], strict=True):
        if isinstance(shown, Picture):
            assert kind in ("", "{toctree}"), "a block with a language is run"
            continue
        path, _, test = shown.test.partition("::")
        source = (ROOT / path).read_text("utf-8")
        assert not test or re.search(rf"^def {test}\(", source, re.MULTILINE), shown.test
        helpers = re.findall(r"^from (tests\.[\w.]+) import", source, re.MULTILINE)
        sources = [source, *(read(each) for each in helpers)]
        assert isinstance(shown, Alike) or any(word in each for each in sources), shown.test


def read(module: str) -> str:
    """Return the text of a test file, or "" for a package."""
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    return path.read_text("utf-8") if path.is_file() else ""


def test_only_existing_pages_are_listed() -> None:
    assert SHOWN.keys() - {name_of(page) for page in PAGES} == set()
