"""What each statement does: one function a statement, on one :class:`.context.Context`.

:mod:`changefeed.api` parses and hands over; nothing else calls these.
"""
