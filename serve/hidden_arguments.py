"""Start a program with arguments that other users of the machine cannot read.

Linux shows the command line of a process to every user (/proc/PID/cmdline), but its environment only to its own user.
So an argument with a secret goes into the environment, and the command line holds the name of the variable. The new
process is stopped before its first instruction, and the pointer to that argument is set to the variable's value.

The new process runs Python code before the program. After a fork from a process that uses gRPC, that can end in gRPC's
abort(). So such a process runs `python -P -m serve.hidden_arguments COMMAND...`, with the hidden values as JSON on its
standard input.
"""

import ctypes
import json
import os
import platform
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

# Of <sys/prctl.h>.
PR_SET_PDEATHSIG = 1
# Of <sys/ptrace.h>.
TRACE_ME, GET_REGISTERS, DETACH = 0, 12, 17
# user_regs_struct of x86-64 has 27 registers; the one with index 19 is the stack pointer.
REGISTERS, STACK_POINTER = 27, 19
WORD = struct.Struct("<Q")
# Loaded before a fork: in the child of a program with threads, the loader may be locked for ever.
LIBC = ctypes.CDLL(None, use_errno=True)
PTRACE = LIBC.ptrace
PTRACE.argtypes, PTRACE.restype = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p), ctypes.c_long


class _VisibleError(Exception):
    """Arguments cannot be hidden on this machine; no process was started."""


def start(
    command: Sequence[str],
    hidden: Mapping[str, str],
    *,
    environment: Mapping[str, str],
    before: Callable[[], object] = lambda: None,
    visible: Callable[[str], object] = lambda _: None,
    **options: Any,
) -> subprocess.Popen[Any]:
    """Start `command`, with each argument that is a key of `hidden` replaced by its value.

    `before` runs in the new process before the program does. `options` are those of `subprocess.Popen`. If the values
    cannot be hidden (a container that forbids ptrace, a processor other than x86-64), `visible` gets the reason, and
    they are on the command line. Raises `OSError` if the program cannot be started.
    """
    try:
        return _start(command, hidden, environment, before, options)
    except _VisibleError as error:
        visible(str(error))
    arguments = [hidden.get(argument, argument) for argument in command]
    return subprocess.Popen(arguments, env=environment, preexec_fn=before, **options)


def _start(
    command: Sequence[str],
    hidden: Mapping[str, str],
    environment: Mapping[str, str],
    before: Callable[[], object],
    options: Mapping[str, Any],
) -> subprocess.Popen[Any]:
    if platform.machine() != "x86_64":
        raise _VisibleError(f"hiding them works on x86_64 only, this is {platform.machine()}")

    def traced() -> None:
        before()
        _ptrace(TRACE_ME, 0)

    try:
        process = subprocess.Popen(command, env={**environment, **hidden}, preexec_fn=traced, **options)
    except subprocess.SubprocessError as error:
        raise _VisibleError("ptrace is not allowed here") from error
    try:
        _wait_for_stop(process.pid)
        _replace(process.pid, set(hidden))
        _ptrace(DETACH, process.pid)
    except (OSError, struct.error) as error:
        process.kill()
        process.wait()
        raise _VisibleError(str(error)) from error
    return process


def _wait_for_stop(pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    if not os.WIFSTOPPED(status) or os.WSTOPSIG(status) != signal.SIGTRAP:
        raise OSError(f"the new process did not stop before its first instruction (wait status {status})")


def _replace(pid: int, hidden: set[str]) -> None:
    """Set the pointers to arguments that name a variable to its value, in a process that has not run yet.

    From its stack pointer upwards lie the number of arguments, a pointer to each, 0, a pointer to each variable of the
    environment, 0 (System V ABI, AMD64 supplement, 3.4.1).
    """
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:  # noqa: PTH123 - pathlib refuses to open it unbuffered

        def word(address: int) -> int:
            memory.seek(address)
            return int(WORD.unpack(memory.read(WORD.size))[0])

        def starts_with(address: int, text: bytes) -> bool:
            memory.seek(address)
            return memory.read(len(text)) == text

        arguments = _stack_pointer(pid) + WORD.size
        variables = arguments + (word(arguments - WORD.size) + 1) * WORD.size
        for name in hidden:
            placeholder, assignment = os.fsencode(name) + b"\0", os.fsencode(name) + b"="
            slot, variable = arguments, variables
            while not starts_with(word(slot), placeholder):
                slot += WORD.size
            while not starts_with(word(variable), assignment):
                variable += WORD.size
            value = word(variable) + len(assignment)
            memory.seek(slot)
            memory.write(WORD.pack(value))


def _stack_pointer(pid: int) -> int:
    registers = (ctypes.c_uint64 * REGISTERS)()
    _ptrace(GET_REGISTERS, pid, ctypes.addressof(registers))
    return registers[STACK_POINTER]


def _ptrace(request: int, pid: int, data: int = 0) -> None:
    if PTRACE(request, pid, None, data) != 0:
        raise OSError(ctypes.get_errno(), f"ptrace: {os.strerror(ctypes.get_errno())}")


def _die_with_parent() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(argv: list[str]) -> int:
    """Run the command with the values from standard input as hidden arguments; the command's exit code.

    If they cannot be hidden, the command does not run, and standard error says why.
    """

    def refuse(why: str) -> NoReturn:
        sys.exit(f"arguments cannot be hidden: {why}")

    # Read to the end: nothing may stay in a buffer of this process.
    hidden: dict[str, str] = json.loads(sys.stdin.buffer.read())
    process = start(
        argv, hidden, environment=os.environ, before=_die_with_parent, visible=refuse, stdin=subprocess.DEVNULL
    )
    return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
