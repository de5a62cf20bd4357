#!/usr/bin/env bash
# postgres: a cluster is made, loaded and driven by pgbench; then everything dies, and it must recover.
#
#     postgres.sh DIR [SCALE] [SECONDS]
#
# In the middle of the run the database is killed with SIGKILL. The crash test sets two commands, to take the file
# system away as well:
#
#     ON_KILL     kills the daemon with SIGKILL, under the running database
#     ON_RESTART  brings the daemon back and DIR mounted again; runs when the database's processes are gone
#
# After the restart PostgreSQL replays its log. Then must hold: every transaction that was acknowledged is there; the
# four sums of pgbench's accounts agree; every index fits its table; every page has its checksum.
. "$(dirname "$0")/workbench.sh"
SCALE=${2:-5}
SECONDS_LONG=${3:-15}
BINARIES=$(find /usr/lib/postgresql -mindepth 2 -maxdepth 2 -name bin 2>/dev/null | sort -V | tail -n 1)
[ -x "$BINARIES/initdb" ] || fail "postgresql is not installed: run install/packages.sh as root"
require runuser
open_workbench "$@"

# PostgreSQL refuses to run as root.
[ "$(id -u)" -ne 0 ] || chown postgres: "$WORK" "$LOCAL"
postgres() {
    if [ "$(id -u)" -eq 0 ]; then
        (cd "$LOCAL" && runuser -u postgres -- env -u PGHOST "$@")
    else
        (cd "$LOCAL" && "$@")
    fi
}

BASE=$WORK/base
export PGHOST=$LOCAL PGPORT=5499 PGDATABASE=postgres PGUSER=postgres PGCONNECT_TIMEOUT=30
with_host() { postgres env PGHOST="$LOCAL" "$@"; }
start() { quietly postgres "$BINARIES/pg_ctl" -D "$BASE" -l "$LOCAL/server" -w -t 300 start; }
query() { with_host "$BINARIES/psql" -XAtq -v ON_ERROR_STOP=1 -c "$1"; }

# The server's own processes, by its number: the mount may be dead when they have to be found.
server_processes() {
    [ -z "${SERVER:-}" ] || ! kill -0 "$SERVER" 2>/dev/null || { echo "$SERVER"; ps -o pid= --ppid "$SERVER" || true; }
}

# Kills them all and waits until they are gone, or zombies; a minute is long for that, unless the mount hangs.
end_server() {
    local pids pid waits=0
    pids=$(server_processes)
    SERVER=
    for pid in $pids; do kill -KILL "$pid" 2>/dev/null || true; done
    for pid in $pids; do
        while [ -e "/proc/$pid" ] && ! grep -q '^State:.Z' "/proc/$pid/status" 2>/dev/null; do
            waits=$((waits + 1))
            [ "$waits" -lt 1200 ] || { echo "$PROGRAM: process $pid hangs in the kernel" >&2; return 1; }
            sleep 0.05
        done
    done
}
trap 'status=$?; end_server || true; close_workbench $status' EXIT

quietly postgres "$BINARIES/initdb" -D "$BASE" --data-checksums --auth=trust -U postgres
cat >>"$BASE/postgresql.conf" <<END
listen_addresses = ''
port = $PGPORT
unix_socket_directories = '$LOCAL'
shared_buffers = 32MB
max_wal_size = 64MB
checkpoint_timeout = 30s
wal_sync_method = fdatasync
restart_after_crash = off
END
start
SERVER=$(head -n 1 "$BASE/postmaster.pid")
quietly with_host "$BINARIES/pgbench" -i -q -s "$SCALE"
query "create table acknowledged(number integer primary key)"

# One client notes every number whose commit it was told of; pgbench runs beside it.
for ((number = 1; ; number++)); do
    echo "insert into acknowledged values ($number) returning number;"
done | with_host "$BINARIES/psql" -XAtq -v ON_ERROR_STOP=1 >"$LOCAL/acknowledged" 2>>"$LOG" &
inserting=$!
with_host "$BINARIES/pgbench" -n -c 4 -j 2 -T $((SECONDS_LONG * 10)) >"$LOCAL/pgbench" 2>&1 &
benching=$!
sleep "$SECONDS_LONG"
kill -0 "$benching" 2>/dev/null || fail "pgbench ended by itself: $(tail -n 3 "$LOCAL/pgbench")"

[ -z "${ON_KILL:-}" ] || eval "$ON_KILL" >>"$LOG" 2>&1 || fail "ON_KILL ended with status $?"
end_server || fail "the database cannot be ended: the file system holds its processes"
wait "$inserting" "$benching" || true
[ -z "${ON_RESTART:-}" ] || eval "$ON_RESTART" >>"$LOG" 2>&1 || fail "ON_RESTART ended with status $?"
[ -f "$BASE/PG_VERSION" ] || fail "$BASE is not there after the restart"

# All its processes are dead, but as long as nobody has buried them PostgreSQL takes their numbers for running servers.
rm -f "$LOCAL/.s.PGSQL.$PGPORT"* "$BASE/postmaster.pid"
start
SERVER=$(head -n 1 "$BASE/postmaster.pid")
grep -q "redo done\|redo is not required" "$LOCAL/server" || fail "PostgreSQL did not recover (see $LOCAL/server)"
told=$(grep -c '^[0-9]' "$LOCAL/acknowledged") || fail "no commit was acknowledged in $SECONDS_LONG s"
kept=$(query "select count(*) from acknowledged where number <= $told")
[ "$kept" -eq "$told" ] || fail "$told commits were acknowledged and $kept are there"
sums=$(query "select (select sum(abalance) from pgbench_accounts), (select sum(tbalance) from pgbench_tellers),
    (select sum(bbalance) from pgbench_branches), (select coalesce(sum(delta), 0) from pgbench_history)")
[ "$(tr '|' '\n' <<<"$sums" | sort -u | wc -l)" -eq 1 ] || fail "the sums of pgbench disagree: $sums"
history=$(query "select count(*) from pgbench_history")
[ "$history" -gt 0 ] || fail "pgbench got no transaction done"
quietly with_host "$BINARIES/pg_amcheck" --install-missing --heapallindexed postgres
quietly with_host "$BINARIES/pgbench" -n -c 2 -T 3
quietly postgres "$BINARIES/pg_ctl" -D "$BASE" -m fast -w -t 300 stop
quietly postgres "$BINARIES/pg_checksums" --check -D "$BASE"

report "scale $SCALE, $history transactions and $told noted commits before the kill, all kept;" \
    "amcheck and checksums clean$([ -z "${ON_KILL:-}" ] || echo "; the daemon was killed too")"
