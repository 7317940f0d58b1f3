"""Masters of a session: local, standalone, YARN, Kubernetes, and the settings that each needs.

    spark.master                 tasks run in                     required settings
    local, local[4], local[*]    processes of this machine        none
    spark://HOST:7077            workers of a standalone cluster  driver's address, secret
    yarn                         containers of a Hadoop cluster   its configuration, Python path
    k8s://https://HOST:443       pods                             image, Python path, address

The driver always runs here (deploy mode client). Invalid or missing settings are rejected with one
sentence before a JVM starts. A master on a loopback address counts as this machine.

Source: Spark's own pages (configuration, security, spark-standalone, running-on-yarn,
running-on-kubernetes, Python package management).
"""

import os
import re
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from storage.errors import StoreError, reason_of

MASTER = "spark.master"
PYTHON = "spark.pyspark.python"
"""Python of the tasks; it also runs on this machine, where Spark plans reads with it."""

PY_FILES = "spark.submit.pyFiles"
DEPLOY_MODE = "spark.submit.deployMode"
DRIVER_HOST = "spark.driver.host"
AUTHENTICATE = "spark.authenticate"
SECRET = "spark.authenticate.secret"
SECRET_FILE = "spark.authenticate.secret.file"
YARN_ARCHIVES = "spark.yarn.dist.archives"
K8S_IMAGES = ("spark.kubernetes.container.image", "spark.kubernetes.executor.container.image")
K8S_LOGIN = "spark.kubernetes.authenticate."
K8S_POD = "spark.kubernetes.driver.pod.name"

_LOCAL = re.compile(r"local(\[(\d+|\*)(,\s*\d+)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]")
_STANDALONE = re.compile(r"spark://([^/,\s]+:\d+)(,[^/,\s]+:\d+)*")
_K8S = re.compile(r"k8s://(https?://)?[^/,\s]+:\d+(/\S*)?")
_LOOPBACK = re.compile(r"localhost|127(\.\d+){3}|\[?::1\]?", re.IGNORECASE)
_PRIVATE = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)
"""Names of settings that Spark itself redacts."""


def is_local(settings: Mapping[str, str]) -> bool:
    """Return whether tasks run in processes of this session, with its Python and its packages."""
    return _LOCAL.fullmatch(settings[MASTER]) is not None


def is_on_this_machine(settings: Mapping[str, str]) -> bool:
    """Return whether only this machine must reach the driver: a local or a loopback master."""
    master = settings[MASTER]
    if _STANDALONE.fullmatch(master):
        hosts = [each.rpartition(":")[0] for each in master.removeprefix("spark://").split(",")]
        return all(_LOOPBACK.fullmatch(host) for host in hosts)
    return is_local(settings) or _LOCAL_CLUSTER.fullmatch(master) is not None


def check_settings(settings: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Raise StoreError for settings that cannot work with this master."""
    master = settings[MASTER]
    if is_local(settings):
        return
    if settings.get(DEPLOY_MODE, "client") != "client":
        raise StoreError(
            f"{DEPLOY_MODE} = {settings[DEPLOY_MODE]} is not supported: the driver "
            "runs on this machine; remove the line"
        )
    if _STANDALONE.fullmatch(master):
        if not is_on_this_machine(settings):
            _check_standalone(settings)
    elif master == "yarn":
        _check_yarn(settings, environment)
    elif _K8S.fullmatch(master):
        _check_kubernetes(settings)
    elif not _LOCAL_CLUSTER.fullmatch(master):
        raise StoreError(
            f"invalid {MASTER} {master!r}: use local[*], spark://HOST:7077, yarn or "
            "k8s://https://HOST:443, with the port"
        )
    _check_python(settings, environment)


def _check_standalone(settings: Mapping[str, str]) -> None:
    _must_reach_us(settings, "workers")
    if settings.get(AUTHENTICATE) != "true":
        raise StoreError(
            f"{AUTHENTICATE} is not true, so any peer that reaches a port of the cluster or of "
            f"the job could run code: set it to true, and {SECRET_FILE} to a file with the "
            "cluster's secret"
        )
    if SECRET not in settings and SECRET_FILE not in settings:
        raise StoreError(f"{SECRET_FILE} is missing: name a file with the cluster's secret")


def _check_yarn(settings: Mapping[str, str], environment: Mapping[str, str]) -> None:
    names = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
    directories = [environment[name] for name in names if environment.get(name)]
    if not directories:
        raise StoreError(
            f"{MASTER} is yarn, and neither {names[0]} nor {names[1]} is set: set one to the "
            "directory with the cluster's core-site.xml and yarn-site.xml"
        )
    if not any(Path(each).is_dir() for each in directories):
        raise StoreError(f"{directories[0]} is not a directory: set {names[0]} to one")
    if settings.get(DRIVER_HOST) is not None:
        _must_reach_us(settings, "containers")
    python = _must(settings, PYTHON, "the path of Python on the nodes, or in an archive")
    if "/" in python and not python.startswith("/"):
        first = python.removeprefix("./").partition("/")[0]
        archives = settings.get(YARN_ARCHIVES, "").split(",")
        if not any(each.endswith(f"#{first}") for each in archives):
            raise StoreError(
                f"{PYTHON} = {python} is in no archive: name an archive that ends with #{first} in "
                f"{YARN_ARCHIVES}"
            )


def _check_kubernetes(settings: Mapping[str, str]) -> None:
    _must_reach_us(settings, "pods")
    if not any(settings.get(name) for name in K8S_IMAGES):
        raise StoreError(
            f"{K8S_IMAGES[0]} is missing: name an image with Spark, Python, pyarrow and numpy"
        )
    _must(settings, PYTHON, "the path of Python in the image")
    for part in ("driver.", "submission."):
        for name in settings:
            if name.startswith(K8S_LOGIN + part):
                right = K8S_LOGIN + name.removeprefix(K8S_LOGIN + part)
                raise StoreError(
                    f"{name} is for drivers that Spark starts in pods, but this driver "
                    f"runs here: use {right}"
                )
    if settings.get(K8S_POD) and not settings.get("spark.driver.port"):
        raise StoreError(
            f"{K8S_POD} is set, but not spark.driver.port: a driver in a pod needs a fixed port, "
            "the one in its headless service"
        )


def _must(settings: Mapping[str, str], name: str, what: str) -> str:
    value = settings.get(name)
    if not value:
        raise StoreError(f"{name} is missing: set it to {what}")
    return value


def _must_reach_us(settings: Mapping[str, str], who: str) -> None:
    host = _must(settings, DRIVER_HOST, f"the address of this machine that {who} reach")
    if _LOOPBACK.fullmatch(host):
        raise StoreError(
            f"{DRIVER_HOST} = {host} is reachable from this machine only: set it to an "
            f"address that {who} reach"
        )


def _check_python(settings: Mapping[str, str], environment: Mapping[str, str]) -> None:
    python = settings.get(PYTHON)
    if python is not None and shutil.which(python, path=environment.get("PATH")) is None:
        raise StoreError(
            f"{PYTHON} = {python} does not run on this machine: Spark plans reads here with the "
            "workers' Python, so install it here, too"
        )


def set_private_apart(settings: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split settings into those for the command line and the secret ones.

    Reads a standalone cluster's secret from its file, as Spark does so only on Kubernetes. Raises
    StoreError if the secret cannot be used.
    """
    found = dict(settings)
    if _STANDALONE.fullmatch(found[MASTER]) and SECRET_FILE in found:
        found[SECRET] = read_secret(found.pop(SECRET_FILE))
    private = {name: found.pop(name) for name in list(found) if _PRIVATE.search(name)}
    return found, private


def read_secret(path: str) -> str:
    """Return the first line of a file that only this user may read. Raises StoreError."""
    try:
        if stat.S_IMODE(os.stat(path).st_mode) & 0o077:
            raise StoreError(
                f"{path} holds a secret that other users can read: run chmod 600 {path}"
            )
        secret = Path(path).read_text(encoding="utf-8").partition("\n")[0].strip()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {reason_of(error)}") from error
    if not secret:
        raise StoreError(f"{path} is empty: it must hold the cluster's secret in its first line")
    return secret


def write_private(private: Mapping[str, str], directory: str) -> str:
    """Write the settings to a file for spark-submit that only this user may read; return its path.

    Raises StoreError if it cannot be written.
    """
    path = Path(directory) / "private.conf"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            for name, value in private.items():
                file.write(f"{name}={value.replace(chr(92), chr(92) * 2)}\n")
    except OSError as error:
        raise StoreError(f"cannot write {path}: {reason_of(error)}") from error
    return str(path)
