"""Spark jobs as supervised child processes, and their timetable."""
