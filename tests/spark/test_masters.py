"""Settings that each kind of master needs, and settings kept off the command line.

YARN and Kubernetes are compared with Spark's documentation; nothing here runs them.
"""

import os
import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from spark.masters import (
    check_settings,
    is_local,
    is_on_this_machine,
    read_secret,
    set_private_apart,
    write_private,
)
from spark.session import (
    prepare_environment,
    read_settings,
    session_settings,
    start_session,
    with_our_code,
)
from storage.errors import StoreError
from tests.support.golden import REPOSITORY
from troupemq.cluster_demo import standalone
from troupemq.cluster_demo.standalone import MASTER_CLASS, WORKER_CLASS

STANDALONE = {
    "spark.master": "spark://spark-1.example.org:7077",
    "spark.driver.host": "10.0.0.7",
    "spark.authenticate": "true",
    "spark.authenticate.secret.file": "secret",
}
YARN = {"spark.master": "yarn", "spark.pyspark.python": "python3"}
KUBERNETES = {
    "spark.master": "k8s://https://10.0.0.1:6443",
    "spark.driver.host": "driver.jobs.svc",
    "spark.kubernetes.container.image": "example/spark-py:4.2.1",
    "spark.kubernetes.namespace": "jobs",
    "spark.kubernetes.authenticate.serviceAccountName": "spark",
    "spark.pyspark.python": "python3",
}
IMAGE = "spark.kubernetes.container.image"
EXECUTOR_IMAGE = "spark.kubernetes.executor.container.image"
POD = "spark.kubernetes.driver.pod.name"
PORT = "spark.driver.port"
ARCHIVES = "spark.yarn.dist.archives"
DEPLOY_MODE = "spark.submit.deployMode"
OAUTH = "spark.kubernetes.authenticate.submission.oauthToken"
ACCOUNT = "spark.kubernetes.authenticate.driver.serviceAccountName"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment with a `python3` and a Hadoop configuration."""
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.touch(mode=0o755)
    conf = tmp_path / "hadoop"
    conf.mkdir()
    return {"PATH": str(python.parent), "HADOOP_CONF_DIR": str(conf)}


@pytest.mark.parametrize(
    "settings",
    [
        *({"spark.master": name} for name in ("local", "local[4]", "local[*]", "local[2,3]")),
        {"spark.master": "spark://127.0.0.1:7077"},
        {"spark.master": "spark://localhost:7077,[::1]:7078"},
        {"spark.master": "local-cluster[2,1,1024]"},
        STANDALONE,
        {**STANDALONE, DEPLOY_MODE: "client"},
        YARN,
        {**KUBERNETES},
        {**KUBERNETES, "spark.master": "k8s://api.example.org:443"},
        {**KUBERNETES, IMAGE: "", EXECUTOR_IMAGE: "example/executor"},
        {**KUBERNETES, POD: "driver", PORT: "7078"},
    ],
)
def test_complete_settings_are_accepted(
    settings: dict[str, str], environment: dict[str, str]
) -> None:
    check_settings(settings, environment)


def test_the_settings_of_the_manual_are_accepted(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of docs/pipeline.md are used verbatim, except for the file with the secret."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spark-secret").write_text("told-to-nobody\n")
    (tmp_path / "spark-secret").chmod(0o600)
    python = tmp_path / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch(mode=0o755)
    text = (REPOSITORY / "docs" / "pipeline.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\n(spark\.master .*?)^```$", text, re.MULTILINE | re.DOTALL)
    masters = []
    for block in blocks:
        conf = tmp_path / "spark.conf"
        conf.write_text(block.replace("/etc/troupemq", str(tmp_path)))
        settings = read_settings(str(conf))
        check_settings(settings, environment)
        masters.append(settings["spark.master"])
    assert masters == ["spark://10.0.0.1:7077", "yarn", "k8s://https://10.0.0.1:6443"]


@pytest.mark.slow
def test_the_commands_of_the_manual_prepare_a_machine(tmp_path: Path) -> None:
    """Except for pip: the pinned version must be the tested one."""
    text = (REPOSITORY / "docs" / "pipeline.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```sh\n(pip install .pyspark==.*?)^```$", text, re.M | re.S)
    install, home, python, *rest = block.splitlines()
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    version = re.search(r"^spark_version := ([\d.]+)", makefile, re.MULTILINE)
    assert version is not None
    assert shlex.split(install)[2:] == [f"pyspark=={version[1]}", "pyarrow", "numpy"]
    script = "\n".join([home, python, *rest, 'test -x "$PYSPARK_PYTHON" && echo "$SPARK_HOME"'])
    environment = {
        **os.environ,
        "SECRET": "told-to-nobody",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["sh", "-e", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (Path(done.stdout.strip()) / "bin" / "spark-class").is_file()
    conf = tmp_path / "cluster.conf"
    assert stat.S_IMODE(conf.stat().st_mode) == 0o600
    settings = read_settings(str(conf))
    assert settings == {
        "spark.authenticate": "true",
        "spark.authenticate.secret": "told-to-nobody",
    }


def test_the_commands_of_the_manual_start_the_demonstrations_processes() -> None:
    """Classes and options of a standalone cluster must be those that `make cluster-demo` runs."""
    text = (REPOSITORY / "docs" / "pipeline.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```sh\n(export SPARK_LOCAL_IP.*?)^```$", text, re.M | re.S)
    _, master, worker = (shlex.split(x) for x in block.replace("\\\n", " ").splitlines())
    for line, name in ((master, MASTER_CLASS), (worker, WORKER_CLASS)):
        assert line[:2] == ["$SPARK_HOME/bin/spark-class", name]
    source = Path(standalone.__file__).read_text(encoding="utf-8")
    options = {word for word in (*master, *worker) if word.startswith("--")}
    assert {f'"{each}"' for each in options if f'"{each}"' not in source} == set()
    assert worker[-1] == f"spark://{master[master.index('--host') + 1]}:7077"


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"spark.master": "mesos://a:5050"}, "invalid spark.master 'mesos://a:5050': use local"),
        ({"spark.master": "spark://a"}, "invalid spark.master 'spark://a'"),
        ({"spark.master": "k8s://https://a"}, "with the port"),
        ({"spark.master": "local[x]"}, "invalid spark.master"),
        ({**STANDALONE, DEPLOY_MODE: "cluster"}, "the driver runs on this machine"),
        ({**STANDALONE, "spark.driver.host": "127.0.0.1"}, "reachable from this machine only"),
        ({**STANDALONE, "spark.driver.host": ""}, "the address of this machine that workers reach"),
        ({**STANDALONE, "spark.authenticate": "false"}, "could run code"),
        ({**YARN, "spark.pyspark.python": ""}, "spark.pyspark.python is missing"),
        ({**YARN, "spark.pyspark.python": "./env/bin/python"}, "ends with #env"),
        ({**YARN, "spark.pyspark.python": "python9"}, "does not run on this machine"),
        ({**YARN, "spark.driver.host": "localhost"}, "an address that containers reach"),
        ({**KUBERNETES, "spark.driver.host": ""}, "that pods reach"),
        ({**KUBERNETES, IMAGE: ""}, f"{IMAGE} is missing"),
        ({**KUBERNETES, "spark.pyspark.python": ""}, "the path of Python in the image"),
        ({**KUBERNETES, POD: "driver"}, "a driver in a pod needs a fixed port"),
        ({**KUBERNETES, OAUTH: "x"}, "use spark.kubernetes.authenticate.oauthToken"),
        ({**KUBERNETES, ACCOUNT: "x"}, "use spark.kubernetes.authenticate.serviceAccountName"),
    ],
)
def test_invalid_settings_are_rejected_in_one_sentence(
    settings: dict[str, str], sentence: str, environment: dict[str, str]
) -> None:
    with pytest.raises(StoreError) as refused:
        check_settings(settings, environment)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_remote_cluster_needs_a_secret(environment: dict[str, str]) -> None:
    without = {name: value for name, value in STANDALONE.items() if "file" not in name}
    with pytest.raises(StoreError, match=r"secret\.file is missing"):
        check_settings(without, environment)


def test_yarn_needs_the_configuration_of_hadoop(environment: dict[str, str]) -> None:
    path = {"PATH": environment["PATH"]}
    with pytest.raises(StoreError, match="neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set"):
        check_settings(YARN, path)
    with pytest.raises(StoreError, match="nowhere is not a directory"):
        check_settings(YARN, {**path, "YARN_CONF_DIR": "nowhere"})


def test_a_python_in_a_yarn_archive_must_exist_locally(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark plans reads with it in the driver, under the same name."""
    monkeypatch.chdir(tmp_path)
    python = "./bin/python3"
    settings = {**YARN, "spark.pyspark.python": python, ARCHIVES: "hdfs:///env.tar.gz#bin"}
    check_settings(settings, environment)
    monkeypatch.chdir(tmp_path / "hadoop")
    with pytest.raises(StoreError, match="does not run on this machine"):
        check_settings(settings, environment)


# --- submitted settings


def test_tasks_get_our_code_and_the_named_python(tmp_path: Path) -> None:
    settings = session_settings({**KUBERNETES, "spark.submit.pyFiles": "a.py"}, str(tmp_path))
    shipped = with_our_code(settings, str(tmp_path))
    first, ours = shipped["spark.submit.pyFiles"].split(",")
    assert first == "a.py"
    assert Path(ours).parent == tmp_path
    assert Path(ours).suffix == ".zip"
    assert shipped[DEPLOY_MODE] == "client"
    variables: dict[str, str] = {}
    prepare_environment(shipped, variables)
    assert variables["PYSPARK_PYTHON"] == "python3"
    assert "SPARK_LOCAL_IP" not in variables


def test_only_sessions_of_this_machine_listen_on_loopback(tmp_path: Path) -> None:
    for master, is_here in (
        ("local[2]", True),
        ("spark://127.0.0.1:7077", True),
        ("local-cluster[2,1,1024]", True),
        ("spark://127.0.0.1:7077,10.0.0.2:7077", False),
        ("yarn", False),
        ("k8s://https://127.0.0.1:6443", False),
    ):
        settings = session_settings({"spark.master": master}, str(tmp_path))
        assert is_on_this_machine(settings) is is_here
        assert is_local(settings) is (master == "local[2]")
        assert settings.get("spark.driver.host") == ("127.0.0.1" if is_here else None)
        variables: dict[str, str] = {}
        prepare_environment(settings, variables)
        assert variables.get("SPARK_LOCAL_IP") == ("127.0.0.1" if is_here else None)


# --- secrets


def test_secrets_stay_off_the_command_line(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3\\cret\n")
    secret.chmod(0o600)
    given = {
        **STANDALONE,
        "spark.authenticate.secret.file": str(secret),
        "spark.hadoop.fs.s3a.secret.key": "xyz",
    }
    shown, private = set_private_apart(given)
    assert private == {
        "spark.authenticate.secret": "s3\\cret",
        "spark.hadoop.fs.s3a.secret.key": "xyz",
    }
    assert set(shown) == {"spark.master", "spark.driver.host", "spark.authenticate"}
    written = Path(write_private(private, str(tmp_path)))
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert written.read_text().splitlines() == [
        "spark.hadoop.fs.s3a.secret.key=xyz",
        "spark.authenticate.secret=s3\\\\cret",
    ]


def test_on_kubernetes_spark_reads_the_secret_file() -> None:
    _, private = set_private_apart({**KUBERNETES, "spark.authenticate.secret.file": "/etc/s"})
    assert private == {"spark.authenticate.secret.file": "/etc/s"}


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    with pytest.raises(StoreError, match=r"cannot read .*: No such file"):
        read_secret(str(secret))
    secret.write_text("\n")
    secret.chmod(0o644)
    with pytest.raises(StoreError, match="chmod 600"):
        read_secret(str(secret))
    secret.chmod(0o600)
    with pytest.raises(StoreError, match="is empty"):
        read_secret(str(secret))


def test_a_refusal_happens_before_java_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark import SparkContext

    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)

    with pytest.raises(StoreError, match="yarn, and neither HADOOP_CONF_DIR"):
        start_session({"spark.master": "yarn"}, str(tmp_path))
    assert SparkContext._gateway is None
    assert list(tmp_path.iterdir()) == []
