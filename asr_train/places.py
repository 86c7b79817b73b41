"""Where conf/, recipes/ and scripts/ are: in the checkout, or among the files of the package."""

import os

_PACKAGE = os.path.dirname(os.path.abspath(__file__))
_CHECKOUT = os.path.dirname(_PACKAGE)
IS_CHECKOUT = os.path.exists(os.path.join(_CHECKOUT, "conf", "config.yaml"))
ROOT = _CHECKOUT if IS_CHECKOUT else os.path.join(_PACKAGE, "checkout")
