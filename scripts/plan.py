"""plan.py KEY=VALUE...

As `asr-train plan`; see asr_train/command/plan.py, or plan.py --help.
"""

import asr_train.interrupt  # noqa: F401

# isort: split
from asr_train.command import plan
from asr_train.jobs import main

if __name__ == "__main__":
    main(plan.planned, f"plan.py KEY=VALUE...\n\n{plan.__doc__}")
