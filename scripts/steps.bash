# Steps: one command each, with its needs, a time limit, a log, and one line of output. Sourced by
# scripts/test, scripts/check, scripts/mutants and .ci/run, which set LOGS to a folder first.
#
# A step whose need is missing is skipped and listed at the end with what to install. With CI=true
# the need is installed instead, and any skip that remains, also of a single test, is a failure.

PASSED=0 FAILED=0 SKIPPED=0
# Tests that the next step leaves out because a later one runs them: they do not count as skipped.
ELSEWHERE=0
# Not empty for a step that passes although it finds no test.
NONE_IS_FINE=""
MISSING=()
running=""

readonly TAIL_LINES=60
# Seconds that all builds together, and all other steps together, may take: each gets its own limit
# or what is left. Limits are for hangs: several times what an idle machine needs. Builds have a
# budget of their own, so that a slow build takes no time from the tests after it.
BUILD_LEFT_S=${NKV_BUILD_BUDGET_S:-7200} STEPS_LEFT_S=${NKV_BUDGET_S:-7200}
readonly BUILD_S=1800

rm -rf "$LOGS"
mkdir -p "$LOGS"
trap 'end_running; exit 130' INT TERM

end_running() {
    if [ -n "$running" ]; then kill -TERM "$running" 2>/dev/null || true; fi
}

# --- needs: have_X checks, hint_X prints what to install, install_X installs it -------------------

have_python3() { command -v python3 >/dev/null; }
hint_python3() { echo "apt-get install python3"; }
install_python3() { apt_install python3; }

# An interpreter that makes environments with pip.
have_python_venv() {
    python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}
hint_python_venv() { echo "apt-get install python3-venv (Python 3.10 or later)"; }
install_python_venv() { apt_install python3 python3-venv; }

# vLLM, LMCache and SGLang, and what compiles a module of SGLang's.
have_engines() { scripts/engines-test --check >/dev/null; }
hint_engines() {
    echo "apt-get install $engines_packages; scripts/engines-test --install (loads 1.3 GB)"
}
install_engines() {
    scripts/engines-test --install ||
        { apt_install $engines_packages && scripts/engines-test --install; }
}
readonly engines_packages="g++ libssl-dev python3-dev python3-venv util-linux"

have_curl() { command -v curl >/dev/null; }
hint_curl() { echo "apt-get install curl ca-certificates"; }
install_curl() { apt_install curl ca-certificates; }

have_nextest() { cargo nextest --version >/dev/null 2>&1; }
hint_nextest() { echo "cargo install --locked cargo-nextest"; }
install_nextest() { cargo install --locked cargo-nextest; }

have_slurm() {
    local tool
    for tool in slurmctld slurmd srun sbatch scancel sinfo munged; do
        command -v "$tool" >/dev/null || return 1
    done
    [ "$(id -u)" = 0 ]
}
hint_slurm() { echo "apt-get install slurmctld slurmd slurm-client munge, and run as root"; }
install_slurm() { apt_install slurmctld slurmd slurm-client munge; }

have_etcd() { command -v etcd >/dev/null; }
hint_etcd() { echo "apt-get install etcd-server"; }
install_etcd() { apt_install etcd-server; }

have_cxx() { command -v c++ >/dev/null; }
hint_cxx() { echo "apt-get install g++"; }
install_cxx() { apt_install g++; }

# To build with the feature rdma.
have_rdma_build() {
    command -v cmake >/dev/null && compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null
}
hint_rdma_build() { echo "apt-get install cmake libclang-dev"; }
install_rdma_build() { apt_install cmake libclang-dev; }

# To run with devices: a guest, and what programs in it load.
have_rdma_guest() {
    local tool
    for tool in qemu-system-x86_64 busybox cpio modprobe depmod xz rdma ip unshare python3; do
        command -v "$tool" >/dev/null || return 1
    done
    [ "$(id -u)" = 0 ] && compgen -G '/usr/lib/*/libibverbs.so.1' >/dev/null &&
        compgen -G '/usr/lib/*/libibverbs/librxe-*' >/dev/null
}
hint_rdma_guest() { echo "apt-get install $rdma_guest_packages, and run as root"; }
install_rdma_guest() { apt_install $rdma_guest_packages; }
readonly rdma_guest_packages="qemu-system-x86 busybox-static cpio kmod xz-utils iproute2 \
util-linux python3 libibverbs1 ibverbs-providers"

# Hosts in network namespaces.
have_network() {
    local tool
    for tool in ip setpriv python3; do command -v "$tool" >/dev/null || return 1; done
    [ "$(id -u)" = 0 ] && [ -c /dev/net/tun ]
}
hint_network() { echo "apt-get install $network_packages, and run as root, with /dev/net/tun"; }
install_network() { apt_install $network_packages; }
readonly network_packages="iproute2 util-linux python3"

have_cargo_deny() { cargo deny --version >/dev/null 2>&1; }
hint_cargo_deny() { echo "cargo install --locked cargo-deny"; }
install_cargo_deny() { cargo install --locked cargo-deny; }

have_cargo_mutants() { cargo mutants --version >/dev/null 2>&1; }
hint_cargo_mutants() { echo "cargo install --locked cargo-mutants"; }
install_cargo_mutants() { cargo install --locked cargo-mutants; }

apt_install() {
    local as_root=()
    [ "$(id -u)" = 0 ] || as_root=(sudo -n)
    "${as_root[@]}" apt-get update -q &&
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -q --no-install-recommends "$@"
}

# --- steps ----------------------------------------------------------------------------------------

# build "name" "needs" COMMAND...: one of the limits for builds.
build() {
    run_step "$1" "$2" "$((BUILD_S < BUILD_LEFT_S ? BUILD_S : BUILD_LEFT_S))" "${@:3}"
    BUILD_LEFT_S=$((BUILD_LEFT_S - TOOK_S))
}

# step "name" "needs" LIMIT_SECONDS COMMAND...
step() {
    run_step "$1" "$2" "$(($3 < STEPS_LEFT_S ? $3 : STEPS_LEFT_S))" "${@:4}"
    STEPS_LEFT_S=$((STEPS_LEFT_S - TOOK_S))
}

run_step() {
    local name=$1 needs=$2 limit=$(($3 > 0 ? $3 : 1)) log need started status=0
    shift 3
    TOOK_S=0
    log=$LOGS/${name//[^a-z0-9]/-}.log
    printf '%-28s ' "$name"
    for need in $needs; do
        provide "$need" "$log" || { skip_step "$name" "$need" "$log"; return; }
    done
    started=$SECONDS
    # In the background, so that an interrupt reaches this shell, which ends the step's whole group.
    timeout --kill-after=30 "$limit" "$@" >>"$log" 2>&1 </dev/null &
    running=$!
    wait "$running" || status=$?
    running=""
    TOOK_S=$((SECONDS - started))
    count "$status" "$log"
    if [ "$status" = 0 ] && [ "$COUNTED_FAILED" = 0 ]; then
        printf 'ok       %5d s   %s\n' $TOOK_S "$COUNTED"
        return
    fi
    printf 'FAILED   %5d s   %s' $TOOK_S "$COUNTED"
    case $status in 124 | 137) printf ' (ran past %d s)' "$limit" ;; esac
    printf '\n'
    failures_in "$log" | sed 's/^/    ! /'
    tail -n $TAIL_LINES "$log" | sed 's/^/    | /'
    printf '    whole log: %s\n' "$log"
}

# The names of the tests that failed, and where they panicked: the end of a long log may lack both.
failures_in() {
    grep -E -A 1 '^test .* FAILED$|^test result: FAILED|^ +(FAIL|TIMEOUT|ABORT|SIG[A-Z]+) \[|'`
        `'^(FAILED|ERROR) |panicked at ' "$1" | head -n 40 | cut -c 1-200
}

# provide NEED LOG: true if it is there; with CI=true installs it.
provide() {
    "have_$1" && return
    [ "${CI:-}" = true ] || return 1
    echo "installing: $("hint_$1")" >>"$2"
    "install_$1" >>"$2" 2>&1
    "have_$1"
}

skip_step() {
    local hint
    hint=$("hint_$2")
    MISSING+=("$1: $hint")
    if [ "${CI:-}" = true ]; then
        FAILED=$((FAILED + 1))
        printf 'FAILED             needs: %s\n' "$hint"
        [ ! -s "$3" ] || tail -n $TAIL_LINES "$3" | sed 's/^/    | /'
    else
        SKIPPED=$((SKIPPED + 1))
        printf 'skipped\n'
    fi
}

# count STATUS LOG: adds the tests that the log counts, or one for a step that is a single test.
count() {
    local passed=0 failed=0 skipped=0
    read -r passed failed skipped < <(tests_in "$2")
    skipped=$((skipped > ELSEWHERE ? skipped - ELSEWHERE : 0))
    COUNTED=""
    if [ $((passed + failed + skipped)) -gt 0 ]; then
        COUNTED="$passed passed"
        [ "$skipped" = 0 ] || COUNTED+=", $skipped ignored"
        [ "$failed" = 0 ] || COUNTED+=", $failed failed"
    elif [ "$1" = 0 ] && [ -z "$NONE_IS_FINE" ] &&
        grep -qE '^test result: |^ +Summary \[' "$2"; then
        COUNTED="no test has the name that this step selects" failed=1
    elif [ "$1" = 0 ]; then
        passed=1
    fi
    if [ "${CI:-}" = true ]; then
        failed=$((failed + skipped)) skipped=0
    fi
    if [ "$1" != 0 ] && [ "$failed" = 0 ]; then failed=1; fi
    PASSED=$((PASSED + passed)) FAILED=$((FAILED + failed)) SKIPPED=$((SKIPPED + skipped))
    COUNTED_FAILED=$failed
}

# "passed failed skipped" from nextest's summary, else from the lines of cargo test and pytest.
tests_in() {
    awk '
        function number_before(word,   at) {
            return match($0, "[0-9]+ " word) ? substr($0, RSTART, RLENGTH) + 0 : 0
        }
        /^ +Summary \[/ {
            nextest = 1
            p = number_before("passed"); s = number_before("skipped")
            f = number_before("failed") + number_before("timed out") + number_before("exec failed")
        }
        /^test result: / && !nextest {
            p += number_before("passed"); f += number_before("failed")
            s += number_before("ignored")
        }
        # pytest
        /^[0-9]+ (passed|failed|skipped|error).* in [0-9.]+s/ && !nextest {
            p += number_before("passed"); s += number_before("skipped")
            f += number_before("failed") + number_before("error")
        }
        END { print p + 0, f + 0, s + 0 }
    ' "$1"
}

# The last lines: missing needs, then "N passed, N failed, N skipped".
summary() {
    local line
    if [ "${#MISSING[@]}" -gt 0 ]; then
        printf '\nNot run, and what to install:\n'
        for line in "${MISSING[@]}"; do printf '  %s\n' "$line"; done
    fi
    printf '\n%d passed, %d failed, %d skipped\n' "$PASSED" "$FAILED" "$SKIPPED"
    [ "$FAILED" = 0 ]
}
