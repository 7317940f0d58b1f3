"""The work of jobs in each part of a store; spark/jobs/ has their front sides.

    scan.py    messages for jobs that read them once, in parts

None needs Spark: parts.py shares the work out to its tasks, or does it here.
"""
