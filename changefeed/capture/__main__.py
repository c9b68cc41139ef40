"""``python -m changefeed.capture`` is the capture process."""

import sys

from changefeed.core.loading import loading

with loading():
    from changefeed.capture.process import main

if __name__ == "__main__":
    sys.exit(main())
