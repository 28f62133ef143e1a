"""The command `triton-batching`: every program of the project by one name.

`triton-batching VERB ARGUMENTS` is `python -m MODULE ARGUMENTS`. Nothing but the verb's own module is imported.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

from triton_batching.terminal import guarded, name_programs

# Verb, module and what it does, in the order in which a user meets them.
STAGES: dict[str, dict[str, tuple[str, str]]] = {
    "export: a model becomes an ONNX file with a proven batch axis": {
        "add": ("export.add", "add your own model to a repository, its batch axis proved"),
        "variant": ("export.variant", "make an FP16, INT8 or TensorRT variant of a model, and compare it"),
    },
    "serve: a real tritonserver, started right": {
        "serve": ("serve", "serve models until Ctrl-C"),
        "cluster": ("serve.cluster", "run replicas behind a front door"),
        "doctor": ("serve.doctor", "find batching mistakes in a model repository"),
    },
    "perf: measure, understand and tune": {
        "demo": ("perf.demo", "the whole journey: serve, batch, measure, report"),
        "load": ("perf.load", "load a model from many processes and check every reply"),
        "measure": ("perf.measure.sweep", "measure one model over its configurations with perf_analyzer"),
        "profile": ("perf.measure.service_time", "measure the service time of each batch size"),
        "report": ("perf.report", "one page of all records; tables and pages of a folder"),
        "compare": ("perf.compare", "say whether two sets of records differ"),
        "versus": ("perf.compare.versus", "measure two configurations in turn and compare them"),
        "why": ("perf.why", "say which rule closes each batch, and what would help most"),
        "simulate": ("perf.simulate", "predict what a configuration would do under a load"),
        "tune": ("perf.tune", "find the configuration that meets a latency target"),
        "watch": ("perf.watch", "watch a running server"),
        "scale": ("perf.scale", "say how many replicas and replica hours a day needs"),
        "pack": ("perf.pack", "pack models onto devices under their latency targets"),
        "memory": ("perf.memory", "measure what an instance takes in memory at each batch size"),
    },
}
OWN = ("triton_batching", "export", "serve", "clients", "perf")
VERBS = {verb: module for verbs in STAGES.values() for verb, (module, _) in verbs.items()}

BASH = """_triton_batching() {
    local word=${COMP_WORDS[COMP_CWORD]} verb=${COMP_WORDS[1]}
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "VERBS --help --version --completion" -- "$word"))
    elif [[ $word == -* ]]; then
        local options=$(triton-batching "$verb" --help | grep -oE -- '--[a-z][a-z0-9-]*' | sort -u)
        COMPREPLY=($(compgen -W "$options" -- "$word"))
    else
        COMPREPLY=($(compgen -f -- "$word"))
    fi
}
complete -o filenames -F _triton_batching triton-batching
"""
ZSH = "autoload -U +X bashcompinit && bashcompinit\n" + BASH
FISH = """complete -c triton-batching -n __fish_use_subcommand -f -a "VERBS"
complete -c triton-batching -n "not __fish_use_subcommand" -a \
"(triton-batching (commandline -opc)[2] --help | string match -r -a -- '--[a-z][a-z0-9-]*' | sort -u)"
"""
COMPLETIONS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def usage() -> str:
    """The verbs by stage, a line each."""
    lines = ["usage: triton-batching VERB [ARGUMENTS]", ""]
    for stage, verbs in STAGES.items():
        lines += [stage, *(f"  {verb:<11} {text}" for verb, (_, text) in verbs.items()), ""]
    return "\n".join(
        [
            *lines,
            "triton-batching VERB --help says what a verb takes.",
            "triton-batching --version says which version this is.",
            "Completion: source <(triton-batching --completion bash); zsh and fish likewise.",
            "example: triton-batching tune ranker --p99-ms 50",
        ]
    )


def version() -> str:
    """The version of this project: of the installed package, or of pyproject.toml in a copy that is not installed."""
    import importlib.metadata
    import tomllib

    try:
        return importlib.metadata.version("triton-batching")
    except importlib.metadata.PackageNotFoundError:
        project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
        return str(project["project"]["version"])


def main(argv: list[str] | None = None) -> int:
    """Run one verb; its exit code. 2 for a verb that does not exist."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help"):
        return guarded(lambda: print(usage()))
    verb, *rest = arguments
    if verb == "--completion":
        return guarded(lambda: _complete(rest))
    if verb == "--version":
        return guarded(lambda: print(f"triton-batching {version()}"))
    if verb not in VERBS:
        print(f"triton-batching {verb}: no such verb. There are: {', '.join(VERBS)}.", file=sys.stderr)
        return 2
    name_programs(f"triton-batching {verb}")
    try:
        return int(_module(VERBS[verb]).main(rest))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in OWN:
            raise
        extra = "export" if error.name in ("torch", "onnxscript") else "cpu"
        print(
            f"triton-batching {verb}: the package '{error.name}' is not installed. Run make setup, or: "
            f"pip install 'triton-batching[{extra}]'",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        # Before the program itself could say so.
        print("stopped.", file=sys.stderr)
        return 130
    finally:
        name_programs("")


def _module(name: str) -> Any:
    module = importlib.import_module(name)
    return importlib.import_module(f"{name}.__main__") if hasattr(module, "__path__") else module


def _complete(shells: list[str]) -> int:
    if len(shells) != 1 or shells[0] not in COMPLETIONS:
        print(f"triton-batching --completion: name one shell: {', '.join(COMPLETIONS)}.", file=sys.stderr)
        return 2
    print(COMPLETIONS[shells[0]].replace("VERBS", " ".join(VERBS)), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
