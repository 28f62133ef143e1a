#!/bin/sh
# Starts the supervised server in the Debian image. The secret of its admin APIs is new at each start; programs in the
# container read it from a file (serve/management/admin.py).
set -eu
# `exec` keeps the process, so the log has the number of this one.
tail --follow=name --retry --quiet --pid=$$ "build/tritonserver-$$.log" 2> /dev/null &
exec python -m serve --host 0.0.0.0 "$@"
