"""Archives as far as a broker reads them: manifests, on any disk."""

import json
from collections.abc import Mapping

from storage.files.disk import Disk
from storage.retention.archive_manifest import FORMAT, MANIFEST, RUN_PREFIX, LastMessage, checksum


def write_run(
    disk: Disk, directory: str, run: int, ends: Mapping[tuple[str, int], LastMessage]
) -> str:
    """A run that says only how far the archive is; returns the path of its manifest."""
    content = {
        "format": FORMAT,
        "run": run,
        "ends": [
            {
                "topic": topic,
                "queue_id": queue_id,
                "queue_offset": last.queue_offset,
                "physical_offset": last.physical_offset,
                "store_timestamp": last.store_timestamp,
            }
            for (topic, queue_id), last in ends.items()
        ],
    }
    text = json.dumps({"manifest": content, "crc32c": checksum(content)}).encode()
    path = f"{directory}/{RUN_PREFIX}{run:08}/{MANIFEST}"
    disk.make_dirs(path.rpartition("/")[0])
    file = disk.open(path, create=True)
    file.pwrite(text, 0)
    file.close()
    return path
