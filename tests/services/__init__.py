"""Real servers for tests: fetched once, started on 127.0.0.1, gone when the test process is.

Nothing has to be installed or running beforehand: programs come from package registries by
way of the Ivy that PySpark ships, into a cache outside of the clone (:mod:`tests.services.cache`).
"""
