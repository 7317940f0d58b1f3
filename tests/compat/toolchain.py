"""Finds Java, Maven, Go and Rust, and builds the clients' programs once for each state of sources.

Java: `mvn process-classes` leaves classes and the list of jars in java/target; the jars themselves
stay in the user's repository. The folders java5/ and broker5/ add nothing but lists of jars: those
of the client and the tools 5.5.0, and those of the broker and the name server 5.5.
Go: `go build` leaves go/target/agent, and go/target/tls/agent with a later client. Rust: `cargo
build` leaves rust/target/debug/agent. These folders are ignored by git; a stamp in each holds the
digest of the sources. One process builds at a time; the others wait, and find it done.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from hashlib import sha256
from pathlib import Path

HERE = Path(__file__).resolve().parent
JAVA_PROJECT = HERE / "java"
JAVA_5_PROJECT = HERE / "java5"
BROKER_5_PROJECT = HERE / "broker5"
GO_PROJECT = HERE / "go"
RUST_PROJECT = HERE / "rust"
RUST_TIMEOUT_S = 1800
BUILD_TIMEOUT_S = 600  # a first build downloads 20 MB of jars or modules, of 5.5 150 MB


class MissingTool(Exception):
    """A program of this machine that the suite cannot do without is not there."""


@dataclass(frozen=True)
class Java:
    """A Java and the class path of the official software and our programs for it."""

    executable: str
    class_path: str


def missing() -> list[str]:
    """Return the missing tool, in the words of `MissingTool`."""
    wanted = [(_java_program, "javac"), (_program, "mvn"), (_program, "go")]
    found = []
    for find, name in wanted:
        try:
            find(name)
        except MissingTool as tool:
            found.append(str(tool))
    return found


def java() -> Java:
    """The Java to run, with the project built."""
    _java_program("javac")
    sources = (JAVA_PROJECT / "src").rglob("*.java")
    jars = _class_path(JAVA_PROJECT, "process-classes", sources)
    return Java(_java_program("java"), f"{JAVA_PROJECT / 'target' / 'classes'}:{jars}")


def java_5() -> Java:
    """Build the programs with client and tools 5.5.0 instead of 4.9.7."""
    java()
    jars = _class_path(JAVA_5_PROJECT, "package")
    return Java(_java_program("java"), f"{JAVA_PROJECT / 'target' / 'classes'}:{jars}")


def java_version(tools: Java) -> str:
    """Return what that Java calls itself, for example "openjdk 17.0.15"."""
    command = [tools.executable, "--version"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return " ".join(told.split()[:2])


def java_5_servers() -> Java:
    """Return the Java to run, with the jars of the official 5.5 broker and name server."""
    return Java(_java_program("java"), _class_path(BROKER_5_PROJECT, "package"))


def _class_path(project: Path, phase: str, sources: Iterable[Path] = ()) -> str:
    """Return the jars of a Maven project, which is built first where it is not up to date."""
    maven = _program("mvn")
    target = project / "target"
    jars = target / "classpath.txt"
    digest = _digest([project / "pom.xml", *sources])
    with _alone_in(project):
        if not _is_built(target, digest) or not _all_exist(jars.read_text()):
            shutil.rmtree(target, ignore_errors=True)
            _run([maven, "-q", "-B", phase], project)
            (target / "stamp").write_text(digest)
    return jars.read_text().strip()


def go_agent() -> Path:
    """The Go client program, built."""
    return _go_program(GO_PROJECT / "target")


def rust_agent() -> Path:
    """Return the program of the independent client rocketmq-client-rust, built.

    A first build compiles 300 crates: some 8 minutes on two cores.
    """
    cargo, target = _program("cargo"), RUST_PROJECT / "target"
    sources = [*RUST_PROJECT.glob("Cargo.*"), *(RUST_PROJECT / "src").glob("*.rs")]
    digest = _digest(sources)
    with _alone_in(RUST_PROJECT):
        if not _is_built(target, digest):
            _run([cargo, "build", "--locked", "--quiet"], RUST_PROJECT, RUST_TIMEOUT_S)
            (target / "stamp").write_text(digest)
    return target / "debug" / "agent"


def go_tls_agent() -> Path:
    """Build the agent with the client of go.tls.mod, which supports TLS."""
    return _go_program(GO_PROJECT / "target" / "tls", "-modfile=go.tls.mod", "-tags=tls")


def _go_program(target: Path, *options: str) -> Path:
    go = _program("go")
    digest = _digest([*GO_PROJECT.glob("go.*"), *GO_PROJECT.glob("*.go")])
    with _alone_in(GO_PROJECT):
        if not _is_built(target, digest):
            _run([go, "build", *options, "-o", str(target / "agent"), "."], GO_PROJECT)
            (target / "stamp").write_text(digest)
    return target / "agent"


@contextmanager
def _alone_in(project: Path) -> Iterator[None]:
    """Waits until no other process builds there; the lock is that of the folder itself."""
    folder = os.open(project, os.O_RDONLY)
    try:
        flock(folder, LOCK_EX)
        yield
    finally:
        os.close(folder)


def _java_program(name: str) -> str:
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / name).exists():
        return str(Path(home) / "bin" / name)
    return _program(name)


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise MissingTool(f"{name} is not on PATH")
    return found


def _digest(sources: Iterable[Path]) -> str:
    digest = sha256()
    for source in sorted(sources):
        digest.update(source.name.encode())
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _is_built(target: Path, digest: str) -> bool:
    stamp = target / "stamp"
    return stamp.exists() and stamp.read_text() == digest


def _all_exist(class_path: str) -> bool:
    return all(Path(jar).exists() for jar in class_path.strip().split(":"))


def _run(command: list[str], folder: Path, timeout_s: float = BUILD_TIMEOUT_S) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
