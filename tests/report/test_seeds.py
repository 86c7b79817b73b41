"""Laws of means over seeds: runs are grouped by their names, and compared seed by seed."""

import numpy as np
import pytest
from fake_work import SETTINGS

from asr_train.report.seeds import lines, over_seeds, run_and_seed
from asr_train.schema import ScoreSettings, build

DRAWS = build(ScoreSettings, SETTINGS)


def score(run: str, errors_U: np.ndarray, split: str = "test") -> dict:
    """Return a score of twelve speakers with ten words each."""
    counts = {"words": 10, "insertions": 0, "deletions": 0}
    rows = {
        f"u{n}": {"speaker": f"s{n}", "substitutions": int(e), "errors": int(e), **counts}
        for n, e in enumerate(errors_U)
    }
    errors = int(errors_U.sum())
    return {
        **{"run": run, "split": split, "wer": errors / 120, "errors": errors},
        "by_utterance": rows,
    }


@pytest.mark.parametrize(
    "name, found",
    [
        ("gtc-seed2", ("gtc", 2)),
        ("gtc-seed12-realign1", ("gtc-realign1", 12)),
        ("dnn", None),
        ("gtc-seed", None),
    ],
)
def test_a_name_tells_run_and_seed(name, found):
    assert run_and_seed(name) == found


def test_seeds_are_averaged_and_compared_with_the_baselines_of_the_same_seeds():
    rng = np.random.default_rng(0)
    base = {seed: rng.integers(2, 5, 12) for seed in (1, 2, 3)}
    scores = [
        *(score(f"sgd-seed{seed}", e) for seed, e in reversed(base.items())),
        *(score(f"gtc-seed{seed}", e + 2) for seed, e in base.items()),
        *(score(f"gtc-seed{seed}", e, "dev") for seed, e in base.items()),
        *(score(f"bmuf-seed{seed}", base[seed]) for seed in (1, 2)),
        score("dnn", base[1]),
        score("allreduce-seed1", base[1]),
    ]
    sgd, gtc, bmuf = over_seeds(scores, "sgd-seed1", DRAWS)
    errors = {seed: int(e.sum()) for seed, e in base.items()}
    assert (sgd["run"], sgd["split"], sgd["seeds"], sgd["against"]) == (
        "sgd",
        "test",
        [1, 2, 3],
        None,
    )
    assert sgd["wer_by_seed"] == [errors[seed] / 120 for seed in (1, 2, 3)]
    assert sgd["wer"] == pytest.approx(sum(errors.values()) / 360)
    assert gtc["wer"] == pytest.approx(sgd["wer"] + 0.2)
    against = gtc["against"]
    assert against["run"] == "sgd"
    assert against["percent"] == pytest.approx(-100 * 72 / sum(errors.values()))
    assert against["percent_by_seed"] == pytest.approx([-100 * 24 / n for n in errors.values()])
    assert against["ci95"][0] < against["percent"] < against["ci95"][1] < 0
    assert (against["over"], against["units"]) == ("speakers", 12)
    assert (bmuf["seeds"], bmuf["against"]) == ([1, 2], None)  # not the baseline's seeds


def test_a_single_speaker_is_compared_with_nothing():
    scores = [
        score(f"{run}-seed{seed}", np.array([3])) for run in ("sgd", "gtc") for seed in (1, 2)
    ]
    assert [row["against"] for row in over_seeds(scores, "sgd-seed1", DRAWS)] == [None, None]


def test_a_line_shows_every_seed_and_more_errors_as_plus():
    errors = np.arange(12) % 3 + 1
    scores = [
        *(score(f"sgd-seed{seed}", errors) for seed in (1, 2)),
        *(score(f"gtc-seed{seed}", errors + seed - 1) for seed in (1, 2)),
    ]
    first, second = lines(over_seeds(scores, "sgd-seed2", DRAWS))
    assert first == "sgd, test: 20.00 % over seeds 1, 2 (20.00, 20.00)"
    assert second.startswith(
        "gtc, test: 25.00 % over seeds 1, 2 (20.00, 30.00); errors against sgd: +25.0 % (−2"
    )
    assert second.endswith(", paired over 12 speakers and the seeds")
