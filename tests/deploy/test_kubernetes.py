"""The manifests in conf/deploy/kubernetes: valid by the schemas, and true of the image."""

import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from actors.config import parse_broker_config
from tests.support.runtimes import needs
from troupemq.cli import cli
from troupemq.daemon import DEADLINE_S

FOLDER = Path(__file__).resolve().parents[2] / "conf/deploy/kubernetes"
VERSIONS = ("1.28", "1.37")
"""The first that has the label of the pod's number, and the newest that the package knows."""

DOCUMENTS: list[tuple[str, dict[str, Any]]] = [
    (f"{path.stem}-{found['kind']}", found)
    for path in sorted(FOLDER.glob("*.yaml"))
    for found in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
SETS = [found for _, found in DOCUMENTS if found["kind"] == "StatefulSet"]


def named(kind: str) -> dict[str, dict[str, Any]]:
    return {found["metadata"]["name"]: found for _, found in DOCUMENTS if found["kind"] == kind}


@pytest.fixture(scope="module")
def schemas() -> Any:
    """The package; its import takes two seconds, which not every process need spend."""
    needs("kubernetes_validate")
    return import_module("kubernetes_validate")


@pytest.mark.slow(seconds=0.1)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("document", [found for _, found in DOCUMENTS], ids=dict(DOCUMENTS))
def test_a_manifest_is_valid(document: dict[str, Any], version: str, schemas: Any) -> None:
    schemas.validate(document, version, strict=True)


@pytest.mark.slow(seconds=0.1)
def test_an_unknown_manifest_key_is_found(schemas: Any) -> None:
    broken = {**SETS[0], "spec": {**SETS[0]["spec"], "replica": 1}}
    with pytest.raises(schemas.ValidationError):
        schemas.validate(broken, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("each", SETS, ids=lambda each: each["metadata"]["name"])
def test_a_set_has_its_headless_service_budget_and_probes(each: dict[str, Any]) -> None:
    name, spec = each["metadata"]["name"], each["spec"]
    service, budget = named("Service")[spec["serviceName"]], named("PodDisruptionBudget")[name]
    labels = spec["template"]["metadata"]["labels"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= labels.items()
    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    pod = spec["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > DEADLINE_S
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe, path in (("startup", "ready"), ("liveness", "live"), ("readiness", "ready")):
        asked = container[f"{probe}Probe"]["httpGet"]
        assert (asked["path"], asked["port"] in ports) == (f"/health/{path}", True)
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert pod["securityContext"]["runAsUser"] == 10001
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports.keys()


@pytest.mark.parametrize("each", SETS, ids=lambda each: each["metadata"]["name"])
def test_the_manifests_command_line_is_valid_for_the_image(each: dict[str, Any]) -> None:
    (container,) = each["spec"]["template"]["spec"]["containers"]
    values = {"POD_INDEX": "1", "POD_NAME": "pod-1", "POD_NAMESPACE": "mq"}
    words = [str(word) for word in container["args"]]
    for key, value in values.items():
        words = [word.replace(f"$({key})", value) for word in words]
    assert not [word for word in words if "$(" in word], shlex.join(words)
    assert CliRunner().invoke(cli, [*words, "--help"]).exit_code == 0
    if words[0] != "broker":
        return
    text = named("ConfigMap")["troupemq-broker"]["data"]["broker.conf"]
    settings = dict(words[at + 1].split("=", 1) for at, word in enumerate(words) if word == "-s")
    broker, store, findings = parse_broker_config(text, settings)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert not findings
    assert (broker.listen_port, broker.health_port) == (ports["remoting"], ports["health"])
    assert broker.is_slave == (each["metadata"]["name"] == "troupemq-slave")
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert store.root.startswith("/var/lib/troupemq/") and "/var/lib/troupemq" in mounted
    assert broker.broker_name == "broker-1" and broker.broker_ip1.startswith("pod-1.")
    for address in broker.namesrv_addresses:
        assert address.split(".")[1] == "troupemq-namesrv:9876"
