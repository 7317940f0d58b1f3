"""Search for damage in the store, in the background.

PullMessage ── VerifyUnit ──▶ Scrubber ── RepairUnits ──▶ Reput, which sends UnitVerified
Scrubber ── RebuildIndex, RebuildTable ──▶ Reput ── RepairsRefused ──▶ Scrubber
"""
