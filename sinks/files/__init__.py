"""Files in a directory: sorted by name they are in time order.

::

    rows --> sink.py --> staged.py (files that nobody sees yet) --> places/ --> the file's name
               |            writers.py: bytes of a format
               +--> names.py: names and buckets by time; manifest.py: buckets that close
    last_rows.py, typed_rows.py   VERIFY: the last message of each key

``places/`` is where files are: :mod:`.places.local` (a directory), :mod:`.places.objects` (S3,
Google, Azure, HDFS) and :mod:`.places.web` (HTTP PUT), behind :class:`.places.base.FilePlace`.
"""
