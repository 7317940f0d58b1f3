"""The report of one start-up: what it found, and what it did."""

from dataclasses import dataclass, field

from storage.finding import Finding


@dataclass(slots=True)
class RecoveryReport:
    """What start-up found and did; for one log line."""

    clean: bool = True
    """Whether the last owner stopped cleanly."""
    known: bool = False
    """Whether the record of a clean stop was believed, so that nothing had to be read."""
    scanned_from: int = 0
    record_count: int = 0
    """Records read and found whole."""
    end_offset: int = 0
    """Where the log ends."""
    end_reason: str = ""
    """Why what lies there is no record."""
    zeroed_bytes: int = 0
    """Bytes behind the end that were not zeros."""
    removed_files: list[str] = field(default_factory=list)
    dispatched_from: int = 0
    dispatched_count: int = 0
    """Queue units that were made again."""
    gaps: list[tuple[int, int, str]] = field(default_factory=list)
    """(start, end, reason) of what is damaged in the log and passed over."""
    queues_made: set[tuple[str, int]] = field(default_factory=set)
    """Those that were made anew one by one."""
    all_queues_made: bool = False
    """Whether there were none, so that all of them were made anew."""
    findings: list[Finding] = field(default_factory=list)
    """What was not as it should be, and what became of it; but for the gaps."""

    def all_findings(self) -> list[Finding]:
        """Everything worth a line: an operator reads them at a start, or before it from a check."""
        damaged = [
            Finding("commit log", f"damaged from {start} to {end}: {why}")
            for start, end, why in self.gaps
        ]
        stale = []
        if self.clean and self.zeroed_bytes:
            text = f"behind its end, {self.end_offset}, not all is zeros"
            stale = [Finding("commit log", text, is_wrong=False)]
        return list(dict.fromkeys([*damaged, *stale, *self.findings]))
