"""Makes `python -m tf_config` equivalent to the command `tf-config`."""

import sys

from tf_config.cli import main

sys.exit(main())
