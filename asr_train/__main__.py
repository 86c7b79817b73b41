"""`python -m asr_train`: the command asr-train."""

from asr_train.command.main import main

if __name__ == "__main__":
    main()
