"""A JSON config file and its previous version, NAME and NAME.bak, in fastjson's dialect.

Saving writes NAME.tmp, syncs it, keeps what NAME held as NAME.bak with the same care, renames, and
syncs the directory: a power cut leaves the old version or the new one. Loading falls back to the
.bak when NAME is missing, empty or broken.

Source: common/ConfigManager.java, MixAll.java (string2File).
"""

from protocol.fastjson import FastjsonError, loads
from storage.disk import Disk
from storage.errors import StoreError, store_error


def load(disk: Disk, path: str) -> str | None:
    """The text of the newest version that can be read; None where there is no file yet.

    Raises StoreError when there is one and neither it nor its .bak is JSON: going on without it
    would save an empty table over it.
    """
    reasons = []
    for each in (path, f"{path}.bak"):
        text, reason = _read(disk, each)
        if text is not None:
            return text
        if reason:
            reasons.append(reason)
    if reasons:
        raise StoreError(f"{' and '.join(reasons)}: repair {path}, or remove it to begin anew.")
    return None


def _read(disk: Disk, path: str) -> tuple[str | None, str]:
    """The text of one file, or why it is broken; neither for a missing or empty one."""
    try:
        data = disk.read_bytes(path)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"{path} cannot be read ({error.strerror})"
    if not data.strip():
        return None, ""
    try:
        text = data.decode("utf-8")
        value = loads(text)
    except (FastjsonError, UnicodeDecodeError) as error:
        return None, f"{path} is not JSON ({error})"
    if not isinstance(value, dict):
        return None, f"{path} does not hold a JSON object"
    return text, ""


def save(disk: Disk, path: str, text: str) -> bool:
    """Makes `text` the file's content, durably; False if it was that already.

    What the file held becomes the .bak, unless it was empty or broken. Raises StoreError when the
    disk refuses; the file is as it was then.
    """
    data = text.encode("utf-8")
    try:
        previous = disk.read_bytes(path) if disk.exists(path) else b""
        if previous == data:
            return False
        directory = path.rpartition("/")[0]
        disk.make_dirs(directory)
        _write(disk, f"{path}.tmp", data)
        if _read(disk, path)[0] is not None:
            _write(disk, f"{path}.bak.tmp", previous)
            disk.rename(f"{path}.bak.tmp", f"{path}.bak")
            # Now, or the directory might keep the new name of one and the old one of the other.
            disk.sync_directory(directory)
        disk.rename(f"{path}.tmp", path)
        disk.sync_directory(directory)
    except OSError as error:
        raise store_error(f"cannot save {path}", error) from error
    return True


def _write(disk: Disk, path: str, data: bytes) -> None:
    file = disk.open(path, create=True)
    try:
        file.set_size(0)
        file.pwrite(data, 0)
        file.sync()
    finally:
        file.close()
