"""Details of POSIX and Linux, one module a subject; `bench.py` holds what they share.

A check is a function whose name says what holds; it gets a fresh directory and fails by an exception.
"""
