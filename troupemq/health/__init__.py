"""Health of a server: does it live, is it ready; for whoever starts it, and for balancers.

checks.py   what is looked at
http.py     /health/live and /health/ready
notify.py   the service manager's protocol (sd_notify), and its watchdog
"""
