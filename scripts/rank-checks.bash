# Checks of three running ranks that every launcher test uses. Sourced by slurm-test and
# torchrun-test; it starts nothing by itself, and every wait in it has a bound.
#
# The caller sets: SCRATCH (its own empty folder), NKV and NKV_NODE (the two binaries).

readonly RANKS=3
readonly KEYS=30
readonly READY_S=60
readonly DRAIN_S=20
readonly CALL_S=20
# Owners send their counts with their heartbeats.
readonly REPORT_S=10

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# wait_until SECONDS "what" COMMAND...: polls COMMAND, which prints nothing, until it succeeds.
wait_until() {
    local limit=$1 what=$2 end
    shift 2
    end=$((SECONDS + limit))
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || fail "waited $limit s for $what"
        sleep 0.1
    done
}

free_port() {
    python3 -c 'import socket
s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# The binaries of this checkout, built unless NKV_BIN_DIR names a folder that has them.
find_binaries() {
    local top=$1 dir
    if [ -n "${NKV_BIN_DIR:-}" ]; then
        dir=$NKV_BIN_DIR
    else
        (cd "$top" && cargo build --locked --quiet --package nkv-programs --bins)
        dir=${CARGO_TARGET_DIR:-$top/target}/debug
    fi
    NKV=$dir/nkv NKV_NODE=$dir/nkv-node
    [ -x "$NKV" ] && [ -x "$NKV_NODE" ] || fail "no nkv and nkv-node in $dir"
}

# Writes SCRATCH/rank, which a launcher starts once per rank. It runs nkv-node and records its
# output in out.RANK and err.RANK and its exit status in exit.RANK.
#   tracked  the launcher signals every process below it: the wrapper must not pass SIGTERM on
#   alone    the launcher signals the wrapper (or its group): nkv-node gets a session of its own,
#            and the signal once
write_rank_wrapper() {
    local manner=$1 rank_variable=$2 own_session="" on_term=:
    if [ "$manner" = alone ]; then
        own_session=setsid
        # shellcheck disable=SC2016 # expanded when the trap runs
        on_term='kill -TERM "$pid"'
    fi
    cat >"$SCRATCH/rank" <<WRAPPER
#!/usr/bin/env bash
rank=\$$rank_variable
cd "$SCRATCH" || exit 1
$own_session "$NKV_NODE" --heap-bytes 64MiB --http 127.0.0.1:0 --ttl-ms 1000 --drain-ms 2000 \
    >out.\$rank 2>err.\$rank &
pid=\$!
echo \$pid >pid.\$rank
trap '$on_term' TERM
while kill -0 \$pid 2>/dev/null; do wait \$pid; done
wait \$pid
status=\$?
echo \$status >exit.\$rank
exit \$status
WRAPPER
    chmod +x "$SCRATCH/rank"
}

# ready_field RANK NAME: one value of the rank's machine-readable start line.
ready_field() {
    sed -n "/^nkv-node ready /s/.* $2=\([^ ]*\).*/\1/p" "$SCRATCH/out.$1"
}

all_ready() {
    local rank
    for ((rank = 0; rank < RANKS; rank++)); do
        [ ! -e "$SCRATCH/exit.$rank" ] || fail "rank $rank ended before it was ready"
        grep -qs '^nkv-node ready ' "$SCRATCH/out.$rank" || return 1
    done
}

all_ended() {
    local rank
    for ((rank = 0; rank < RANKS; rank++)); do
        [ -s "$SCRATCH/exit.$rank" ] || return 1
    done
}

# check_job ID: every rank took its job from the launcher, so two jobs on one host stay apart.
check_job() {
    local rank job
    for ((rank = 0; rank < RANKS; rank++)); do
        job=$(ready_field "$rank" job)
        [ "$job" = "$1" ] || fail "rank $rank is of job '$job', expected '$1' of the launcher"
    done
}

# Puts KEYS values through rank 0, reads each through rank 2 and compares; then every rank must own
# at least one object and have a segment in shared memory.
check_data() {
    local first last key rank
    local -x NKV_JOB
    NKV_JOB=$(ready_field 0 job)
    first=$(ready_field 0 control) last=$(ready_field $((RANKS - 1)) control)
    for ((key = 0; key < KEYS; key++)); do
        head -c $((1000 * (key + 1))) /dev/urandom >"$SCRATCH/value"
        timeout $CALL_S "$NKV" put --connect "$first" "launcher/$key" "$SCRATCH/value" >/dev/null ||
            fail "put of key $key through rank 0"
        timeout $CALL_S "$NKV" get --connect "$last" "launcher/$key" -o "$SCRATCH/back" \
            >/dev/null || fail "get of key $key through rank $((RANKS - 1))"
        cmp -s "$SCRATCH/value" "$SCRATCH/back" ||
            fail "key $key: what rank $((RANKS - 1)) read differs from what rank 0 put"
    done
    echo "$KEYS values put through rank 0 and read through rank $((RANKS - 1)): equal"
    for ((rank = 0; rank < RANKS; rank++)); do
        wait_until $REPORT_S "rank $rank to own an object" owns_an_object "$rank" "$first"
        echo "rank $rank owns $(objects_of_rank "$rank") objects"
        [ -e "/dev/shm/$(ready_field "$rank" segment)" ] ||
            fail "rank $rank names a segment that is not in /dev/shm:" \
                "$(ready_field "$rank" segment)"
    done
}

owns_an_object() {
    timeout $CALL_S "$NKV" status --connect "$2" --json >"$SCRATCH/status" || fail "nkv status"
    [ "$(objects_of_rank "$1")" -ge 1 ]
}

# From the last requested status.
objects_of_rank() {
    python3 - "$1" "$SCRATCH/status" <<'PYTHON'
import json, sys
rank, path = int(sys.argv[1]), sys.argv[2]
print(next((row["objects"] for row in json.load(open(path))["ranks"] if row["rank"] == rank), 0))
PYTHON
}

# After the launcher was stopped: every rank has drained with exit 0 and left nothing in shared
# memory.
check_drained() {
    local rank status segment
    wait_until $DRAIN_S "every rank to drain and end" all_ended
    for ((rank = 0; rank < RANKS; rank++)); do
        status=$(cat "$SCRATCH/exit.$rank")
        [ "$status" = 0 ] || fail "rank $rank ended with $status, expected 0"
        segment=$(ready_field "$rank" segment)
        # nkv.JOB.RANK.INCARNATION: every file of the job is checked, not only the name that this
        # rank printed.
        compgen -G "/dev/shm/${segment%.*.*}.*" >"$SCRATCH/left" &&
            fail "left in shared memory: $(cat "$SCRATCH/left")"
    done
    echo "every rank drained: exit 0, nothing of the job left in /dev/shm"
}

# Ends only what this test started: nkv-node processes that outlived their launcher, by recorded id.
end_stray_ranks() {
    local file pid
    for file in "$SCRATCH"/pid.*; do
        [ -e "$file" ] || continue
        pid=$(cat "$file")
        [ "$(readlink "/proc/$pid/exe" 2>/dev/null)" = "$(readlink -f "$NKV_NODE")" ] &&
            kill -KILL "$pid" 2>/dev/null
    done
    return 0
}

show_logs() {
    local file
    for file in "$@"; do
        [ -s "$file" ] || continue
        echo "--- ${file#"$SCRATCH"/}" >&2
        tail -n 25 "$file" >&2
    done
}
