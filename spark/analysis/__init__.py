"""The work of the jobs in spark/jobs/ on each part of a store.

    scan.py    messages in parts, for jobs that read them once

No module needs Spark: parts.py runs the parts in its tasks, or in this process.
"""
