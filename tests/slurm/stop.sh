#!/bin/bash
# Ends what start.sh started in FOLDER, by pid.
site=$(realpath -m "$1")
for name in slurmd slurmctld; do
    [ -f "$site/$name.pid" ] || continue
    pid=$(cat "$site/$name.pid")
    kill "$pid" 2>/dev/null || continue
    for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
done
