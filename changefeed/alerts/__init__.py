"""Alerts for those without Prometheus: ``changefeed start --alert URI``.

:mod:`.rules` says what is wrong now, by the figures that ``/metrics`` has; :mod:`.book` what of it
began, lasts and is over; :mod:`.channels` brings that to a webhook, a chat or a mail server;
:mod:`.watch` is the thread that does all three.
"""
