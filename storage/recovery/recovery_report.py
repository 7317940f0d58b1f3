"""Report of one start-up: its findings and actions."""

from dataclasses import dataclass, field

from storage.finding import Finding


@dataclass(slots=True)
class RecoveryReport:
    """Findings and actions of a start-up, for one log line."""

    clean: bool = True
    """Whether the last owner stopped cleanly."""
    known: bool = False
    """Whether the record of a clean stop was valid, so that nothing was read."""
    scanned_from: int = 0
    record_count: int = 0
    end_offset: int = 0
    end_reason: str = ""
    zeroed_bytes: int = 0
    """Non-zero bytes cleared behind the end."""
    removed_files: list[str] = field(default_factory=list)
    dispatched_from: int = 0
    dispatched_count: int = 0
    """Count of rebuilt queue units."""
    gaps: list[tuple[int, int, str]] = field(default_factory=list)
    """(start, end, reason) of skipped damage in the log."""
    queues_made: set[tuple[str, int]] = field(default_factory=set)
    """Queues that were rebuilt individually."""
    all_queues_made: bool = False
    """Whether all queues were missing and rebuilt."""
    findings: list[Finding] = field(default_factory=list)
    """Faults found, with their repair, except for the gaps."""

    def all_findings(self) -> list[Finding]:
        damaged = [
            Finding("commit log", f"damaged from {start} to {end}: {why}")
            for start, end, why in self.gaps
        ]
        stale = []
        if self.clean and self.zeroed_bytes:
            text = f"the bytes behind its end, {self.end_offset}, are not all zeros"
            stale = [Finding("commit log", text, is_wrong=False)]
        return list(dict.fromkeys([*damaged, *stale, *self.findings]))
