"""A synthetic work folder of a finished run, for tests of table and page.

Digit strings with errors at a set rate, a log of SGD that converges, an alignment that misses
the true boundaries by 12 ms: the files have the stages' formats and plausible numbers.
"""

import json
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import soundfile

from asr_train.files import read_jsonl, write_json, write_jsonl, write_yaml

WORDS = ["ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE"]
PHONES = {"ONE": "W AH N", "FIVE": "F AY V", "SEVEN": "S EH V AH N", "TWO": "T UW"}
SPLITS = {"dev": 10, "test": 12}  # speakers
UTTERANCES = 8  # per speaker
ERROR_RATE = {"mono": 0.08, "dnn": 0.025}
MODELS = ("mono", "tri", "dnn")  # that aligned DEV
SCRIPTS = Path(__file__).parents[2] / "scripts"
SETTINGS = {"bootstrap": 1000, "seed": 1, "normaliser": {"kind": "plain"}}


def script(name: str) -> ModuleType:
    """Return a stage's script as a module, so that its function can be called."""
    import importlib.util

    spec = importlib.util.spec_from_file_location(f"script_{name}", SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def make_work(work: Path) -> Path:
    """Fill `work` with all that the table needs; return it."""
    write_yaml(work / "conf/score.yaml", SETTINGS)
    write_yaml(work / "conf/decode.yaml", {"beam": 16.0})
    for split, speakers in SPLITS.items():
        cuts = manifest(split, speakers)
        write_jsonl(work / f"manifests/{split}.jsonl.gz", cuts)
        for run in ERROR_RATE:
            write_jsonl(work / f"exp/{run}/hyp.{split}.jsonl", hypotheses(run, split, cuts))
    write_jsonl(work / "exp/dnn/log.jsonl", training_log())
    for model in MODELS:
        write_json(work / f"ali/{model}/dev.report.json", alignment(model))
    for row in stage_rows():
        write_json(work / "log" / (row["output"].replace("/", "_") + ".json"), row)
    return work


def make_tables(work: Path) -> Path:
    """Score all runs and tabulate them by the scripts; return `tables/wer.json`."""
    scores = []
    for split in SPLITS:
        for run in ERROR_RATE:
            scores.append(score_one(work, run, split))
    script("tables").tables(f"{work}/conf/score.yaml", *scores, f"{work}/tables/wer.md")
    return work / "tables/wer.json"


def make_whole(work: Path) -> list[str]:
    """Fill `work` with all that a page can show; return the inputs of report.py in it.

    An utterance has a quote, markup and a percent sign in its names and words; the recording of
    another is gone.
    """
    make_work(work)
    write_jsonl(work / "manifests/train.jsonl.gz", manifest("train", 3))
    remarks = ["utt_id\tspeaker\tpath\tfate\twhat\twhy", "a\tb\tc\tdropped\tempty text\tno <words>"]
    (work / "manifests/train.dropped.tsv").write_text("\n".join(remarks) + "\n")
    for split in SPLITS:
        path = work / f"manifests/{split}.jsonl.gz"
        write_jsonl(path, [recorded(work, split, cut) for cut in read_jsonl(path)])
    hyp = work / "exp/dnn/hyp.test.jsonl"
    header, first, *rows = read_jsonl(hyp)
    write_jsonl(hyp, [header, first | {"words": ["</script><b>", "=1+1", "ONE", "SIX"]}, *rows])
    make_tables(work)
    write_jsonl(
        work / "exp/mono/passes.jsonl",
        [
            {"flat_pass": 1, "utterances": 24, "loglik_per_frame": -70.5, "seconds": 1.5},
            {"pass": 1, "realigned": False, "gaussians": 90, "seconds": 0.5},
            {"pass": 2, "realigned": True, "gaussians": 120, "loglik_per_frame": -61.25}
            | {"lost": 0, "retried": 1, "moved": 0.0413, "seconds": 2.0},
        ],
    )
    write_json(
        work / "exp/mono/model.json",
        {"gmm": {"passes": 2, "gaussians": 120}, "parts": [{"path": "g.safetensors"}]},
    )
    (work / "exp/mono/g.safetensors").write_bytes(b"")
    write_json(work / "exp/dnn/model.json", {"kind": "dnn", "file": "model.pt"})
    (work / "exp/dnn/model.pt").write_bytes(b"")
    settings = {"model": {"dnn": {"layers": 2}, "lstm": None}, "optim": {"rate": 0.008}}
    about = {"settings": settings, "workers": 1, "device": "cpu", "device_name": None}
    write_json(work / "exp/dnn/run.json", about | {"versions": {"torch": "2.11"}})
    return [
        "tables/wer.json",
        *(f"ali/{model}/dev.report.json" for model in MODELS),
        *("exp/dnn/log.jsonl", "exp/mono/passes.jsonl"),
        *(f"exp/{run}/model.json" for run in ERROR_RATE),
        *(f"exp/{run}/score.{split}.json" for run in ERROR_RATE for split in SPLITS),
        *(f"manifests/{split}.jsonl.gz" for split in ("train", *SPLITS)),
        "conf/score.yaml",
    ]


def recorded(work: Path, split: str, cut: dict[str, Any]) -> dict[str, Any]:
    """Return the cut with a recording of noise, and its words at equal distances."""
    rate, seconds = 8000, cut["duration"]
    path = work / f"audio/{split}/{cut['id']} 'loud' 100%.flac"
    path.parent.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(len(cut["id"]))
    wave = 0.1 * draw.standard_normal(round(seconds * rate))
    if cut["id"] != "test01-000":
        soundfile.write(path, wave, rate)
    source = {"type": "file", "channels": [0], "source": str(path)}
    about = {"id": cut["id"], "sources": [source], "sampling_rate": rate, "duration": seconds}
    words = cut["supervisions"][0]["text"].split()
    times = [[word, round(0.2 + 0.45 * i, 3), 0.45, None] for i, word in enumerate(words)]
    supervision = cut["supervisions"][0] | {"alignment": {"word": times}}
    return cut | {"supervisions": [supervision], "recording": about}


def score_one(work: Path, run: str, split: str) -> str:
    output = f"{work}/exp/{run}/score.{split}.json"
    hyp, manifest = f"{work}/exp/{run}/hyp.{split}.jsonl", f"{work}/manifests/{split}.jsonl.gz"
    script("score").score(hyp, manifest, f"{work}/conf/score.yaml", output)
    return output


def manifest(split: str, speakers: int) -> list[dict[str, Any]]:
    draw = random.Random(split)
    cuts = []
    for speaker in range(speakers):
        for number in range(UTTERANCES):
            utt_id = f"{split}{speaker:02d}-{number:03d}"
            words = draw.choices(WORDS, k=draw.randint(1, 7))
            cuts.append(
                {
                    "id": utt_id,
                    "start": 0,
                    "duration": 0.45 * len(words) + 0.4,
                    "channel": 0,
                    "supervisions": [
                        {"id": utt_id, "text": " ".join(words), "speaker": f"{split}{speaker:02d}"}
                    ],
                    "type": "MonoCut",
                }
            )
    return cuts


def hypotheses(run: str, split: str, cuts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    draw = random.Random(f"{run} {split}")
    header = {"run": run, "split": split, "real_time_factor": 0.031, "acoustic_scale": 0.1}
    rows = [header | {"insertion_penalty": -0.5, "lm_weight": 1.0}]
    for number, cut in enumerate(cuts):
        said = cut["supervisions"][0]["text"].split()
        found = [draw.choice(WORDS) if draw.random() < ERROR_RATE[run] else w for w in said]
        if draw.random() < ERROR_RATE[run]:
            found.insert(draw.randint(0, len(found)), draw.choice(WORDS))
        costs = {"graph_cost": 12.5, "acoustic_cost": 810.0, "frames": 250, "seconds": 0.07}
        final = not (run == "mono" and number == 3)
        at = [[word, round(0.2 + 0.3 * i, 2), 0.3, 0.9] for i, word in enumerate(found)]
        heard = {"words": found, "words_at": at}
        rows.append({"id": cut["id"], **heard, **costs, "final": final})
    return rows


def training_log(epochs: int = 8, steps: int = 60) -> list[dict[str, Any]]:
    draw = np.random.default_rng(1)
    rows: list[dict[str, Any]] = []
    for epoch in range(epochs):
        rate = 0.008 / 2 ** max(0, epoch - 3)
        for _ in range(steps):
            step = len([r for r in rows if "dev_loss" not in r]) + 1
            loss = 0.55 + 2.9 * np.exp(-step / 70) + 0.05 * draw.standard_normal()
            rows.append(
                {
                    "step": step * 10,
                    "epoch": epoch,
                    "frames": step * 2560,
                    "loss": round(float(loss), 4),
                    "accuracy": round(float(1 - 0.24 * loss), 4),
                    "rate": rate,
                    "minibatch": 256,
                    "sent_bits": 0,
                    "elements_sent": 0,
                    "compression_ratio": None,
                    "step_seconds": 0.011,
                    "compute_seconds": 0.010,
                    "exchange_seconds": 0.0,
                    "wait_seconds": 0.001,
                }
            )
        dev = 0.62 + 2.9 * np.exp(-rows[-1]["step"] / 700)
        rows.append(
            {
                "epoch": epoch,
                "step": rows[-1]["step"],
                "dev_loss": round(float(dev), 4),
                "dev_accuracy": round(float(1 - 0.24 * dev), 4),
                "rate": rate,
            }
        )
    return rows


def alignment(model: str = "mono", shift: float = 0.01) -> dict[str, Any]:
    words = ["ONE", "SEVEN", "TWO", "FIVE"]
    draw = np.random.default_rng(2)
    true: list[list[Any]] = [["SIL", 0.0, 0.21]]
    for word in words:
        for phone in PHONES[word].split():
            start = true[-1][2]
            true.append([phone, start, round(start + draw.uniform(0.05, 0.18), 3)])
    true.append(["SIL", true[-1][2], round(true[-1][2] + 0.25, 2)])
    cuts = [round(round((end + draw.normal(0, 0.012)) / shift) * shift, 2) for *_, end in true]
    cuts[-1] = true[-1][2]
    aligned = [[p, ([0.0, *cuts])[i], cuts[i]] for i, (p, *_) in enumerate(true)]
    return {
        "model": model,
        "split": "dev",
        "seconds": 2.2,
        "utterances": 80,
        "lost": [["dev03-004", "no path within beam 40: 34 frames, 7 words & <too short>"]],
        "retried": 2,
        "frames": 20134,
        "loglik_per_frame": {"mono": -61.27, "tri": -59.88, "dnn": -0.31}[model],
        "durations": {"phones": 2412, "shortest_share": 0.144, "long": 7},
        "silence_share": 0.31,
        "boundaries": {
            "compared": 1180,
            "unmatched": 3,
            "median_ms": 9.4,
            "within_20ms": 0.861,
            "within_25ms": 0.902,
            "within_50ms": 0.973,
        },
        "example": {
            "id": "dev00-001",
            "words": " ".join(words),
            "shift_seconds": shift,
            "logmel": fake_logmel(true, shift, draw),
            "aligned": aligned,
            "true": true,
        },
    }


def fake_logmel(
    phones: list[list[Any]], shift: float, draw: np.random.Generator, mels: int = 40
) -> list[list[float]]:
    frames = round(phones[-1][2] / shift)
    feats_TF = draw.normal(-8, 0.8, (frames, mels))
    bands = np.arange(mels)
    for phone, start, end in phones:
        if phone == "SIL":
            continue
        peaks = draw.uniform(2, mels - 2, 3)
        shape_F = sum(6 * np.exp(-(((bands - peak) / 3.5) ** 2)) for peak in peaks)
        feats_TF[round(start / shift) : round(end / shift)] += shape_F + 2
    return [[round(float(x), 2) for x in row] for row in feats_TF]


def stage_rows() -> list[dict[str, Any]]:
    stages = [
        ("manifests", "manifests/train.jsonl.gz", 21.3),
        ("manifests", "manifests/dev.jsonl.gz", 3.1),
        ("manifests", "manifests/test.jsonl.gz", 3.4),
        ("lang", "lang/index.json", 0.8),
        ("feats", "feats/train.jsonl.gz", 9.2),
        ("feats", "feats/dev.jsonl.gz", 1.9),
        ("gmm", "exp/mono/model.json", 74.0),
        ("ali", "ali/mono/train.jsonl.gz", 12.0),
        ("ali", "ali/mono/dev.jsonl.gz", 2.2),
        ("shards", "shards/mono/train/index.json", 3.9),
        ("train", "exp/dnn/model.json", 83.0),
        ("tune", "exp/dnn/tuned.yaml", 11.4),
        ("decode", "exp/dnn/hyp.test.jsonl", 4.6),
        ("score", "exp/dnn/score.test.json", 0.9),
        ("tables", "tables/wer.md", 1.1),
    ]
    return [
        {
            "stage": stage,
            "output": output,
            "seconds": seconds,
            "finished": f"2025-01-01T10:{i:02d}:00",
            "command": json.dumps([stage, output]),
        }
        for i, (stage, output, seconds) in enumerate(stages)
    ]
