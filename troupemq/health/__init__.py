"""Health of a server (live, ready), for service managers and load balancers.

checks.py   the checks, /health/live and /health/ready
notify.py   the service manager's protocol (sd_notify) with its watchdog
"""
