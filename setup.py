"""The wheel brings conf/, recipes/ and scripts/ as asr_train/checkout; see asr_train/places.py."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
LEFT_OUT = shutil.ignore_patterns("work*", "__pycache__", "*.png", "RESULTS.md", "bench_*", ".*")


class WithRecipes(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for name in ("conf", "recipes", "scripts"):
            target = Path(self.build_lib) / "asr_train" / "checkout" / name
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(ROOT / name, target, ignore=LEFT_OUT)


setup(cmdclass={"build_py": WithRecipes})
