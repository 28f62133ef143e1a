"""Train the narrow text recogniser on rendered words. A stopped training goes on when it is started again."""

import importlib.metadata
import json
import shutil
import sys
import time
from collections.abc import Container
from pathlib import Path

import numpy as np
import torch
from rich.progress import Progress

from export.models import word_image
from export.models.text_recognition import build
from export.words import pictures as words
from export.words import reading_accuracy, word_pool
from export.words.training import BUILD, SHORT_UNTIL, WIDTH, Run, set_training, start, step
from triton_batching.machine import Machine
from triton_batching.terminal import program_parser

BATCH = 128
POOL = 240_000
CHECK_SECONDS = 150.0


def load_pool(seed: int, progress: Progress) -> word_pool.Pool:
    """The training pictures, without the validation words."""
    bar = progress.add_task("pictures", total=POOL)
    pool = word_pool.load(
        BUILD / f"pool-{seed}.npz",
        pictures=POOL,
        seed=seed,
        taken={sample.word for sample in reading_accuracy.pictures(reading_accuracy.VALIDATION_SEED)},
        progress=lambda done: progress.update(bar, completed=done),
    )
    progress.update(bar, completed=POOL)
    return pool


def train(run: Run, pool: word_pool.Pool, progress: Progress) -> None:
    """Train until `run.minutes` are spent, including earlier starts, with a check every 150 s."""
    rng = np.random.default_rng([run.seed, run.steps])
    bar = progress.add_task("training", total=run.minutes * 60, completed=int(run.seconds))
    before, next_check, first, loss = time.monotonic(), run.seconds + CHECK_SECONDS, run.steps, 0.0
    set_training(run)
    while run.part < 1:
        longest = 4 if run.part < SHORT_UNTIL else word_pool.LONGEST
        pictures, labels = word_pool.draw_batch(rng, pool, BATCH, longest)
        loss += (step(run, torch.from_numpy(pictures), torch.from_numpy(labels)) - loss) / min(run.steps - first, 50)
        now = time.monotonic()
        run.seconds, before = run.seconds + now - before, now
        progress.update(bar, completed=run.seconds, description=f"loss {loss:.3f}")
        if run.seconds >= next_check:
            progress.print(f"{run.seconds:.0f} s, step {run.steps}, loss {loss:.3f}, reads {check(run):.1%}")
            run.save()
            set_training(run)
            next_check += CHECK_SECONDS
    check(run)


def check(run: Run) -> float:
    """The share of validation words read right; saves the weights if they are at least as good as the best."""
    exact, _ = reading_accuracy.measure(run.model.eval(), word_image.WIDTH)
    if exact >= run.best:
        run.best = exact
        torch.save({name: tensor.contiguous() for name, tensor in run.model.state_dict().items()}, run.best_weights)
    return exact


def record(run: Run, out: Path, seen: Container[str]) -> dict[str, object]:
    """Facts of the training, and how many words that are not in `seen`, its pictures, the weights in `out` read."""
    model, machine = build(WIDTH, out), Machine.this()
    facts: dict[str, object] = {
        "model": f"None-ResNet-None-CTC, width {WIDTH}",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "data": "words of 1 to 10 characters of 0-9a-z, rendered by export/words/pictures.py",
        "faces": [path.stem for path in words.font_files()],
        "packages": {name: importlib.metadata.version(name) for name in (*words.PACKAGES, "pillow", "torch")},
        "training_seed": run.seed,
        "pool_pictures": POOL,
        "pictures_seen": run.pictures,
        "steps": run.steps,
        "minutes": round(run.seconds / 60, 1),
        "machine": f"{machine.cpu}, {machine.cores} cores",
        "weights_kept": "those of the check (every 150 s) that read the most validation words at 100 px",
        "validation_seed": reading_accuracy.VALIDATION_SEED,
        "validation_exact_words": round(run.best, 4),
        "held_out_seed": reading_accuracy.HELD_OUT_SEED,
        "held_out_words": reading_accuracy.WORDS,
    }
    for name, width in (("at_100_px", word_image.WIDTH), ("at_natural_width", None)):
        exact, characters = reading_accuracy.measure(model, width, reading_accuracy.HELD_OUT_SEED, seen)
        facts[f"held_out_{name}"] = {"exact_words": round(exact, 4), "characters": round(characters, 4)}
    return facts


def main(argv: list[str] | None = None) -> int:
    """Train, or continue a stopped training, and write the weights and their record."""
    parser = program_parser(
        "python -m export.words.train_text_recognition", __doc__, example="--minutes 60 --out export/weights"
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="training time (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, pictures and batches (default 0)")
    parser.add_argument("--out", type=Path, default=Path("export/weights"), help="folder (default export/weights)")
    arguments = parser.parse_args(argv)
    out: Path = arguments.out / "text_recognition.pth"
    out.parent.mkdir(parents=True, exist_ok=True)
    run = start(arguments.seed, arguments.minutes)
    with Progress() as progress:
        try:
            pool = load_pool(run.seed, progress)
            train(run, pool, progress)
        except KeyboardInterrupt:
            run.save()
            print(f"Stopped after {run.seconds:.0f} s; the same command continues. Best so far: {run.best_weights}")
            return 130
    shutil.copyfile(run.best_weights, out)
    text = json.dumps(record(run, out, pool.padded.words()), indent=2)
    out.with_suffix(".json").write_text(text + "\n")
    run.checkpoint.unlink(missing_ok=True)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
