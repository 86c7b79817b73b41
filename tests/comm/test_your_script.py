"""The script of docs/your_script.md trains by every method that it names."""

import re
from pathlib import Path

import forked

PAGE = Path(__file__).parents[2] / "docs/your_script.md"


def test_the_pages_script_trains_by_each_of_its_methods():
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    script = {"__name__": "script"}
    exec(compile(code, PAGE.name, "exec"), script)

    def main(exchange):
        return {name: script["train"](name) for name in ("ddp", "gtc", "onebit", "block")}

    for losses in forked.run(main, 2, 2):
        assert isinstance(losses, dict), losses
        assert set(losses) == set(re.findall(r'method == "(\w+)"', code)) | {"ddp"}
        assert max(losses.values()) < 0.1  # of log(10) = 2.3 nats
