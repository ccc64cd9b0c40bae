#!/bin/sh
# A worker in shell, with curl and jq: sh examples/worker.sh ENTRYPOINT COMMAND...
# The command gets the payload of each job at its standard input. If it fails, the job is tried again after a minute.
# JQUEUE_BROKER is the address of `jqueue serve`. If the broker needs a token, JQUEUE_HEADER names a file with the line
# "Authorization: Bearer TOKEN" for a worker's token, which then stays out of the list of processes.
set -u
broker=${JQUEUE_BROKER:-http://127.0.0.1:8470}
entrypoint=$1
shift

post() { # PATH BODY: prints the answer; fails if the status is that of a problem
    curl --silent --show-error --fail-with-body --max-time 70 ${JQUEUE_HEADER:+--header "@$JQUEUE_HEADER"} \
        --header "Content-Type: application/json" --data "$2" "$broker$1"
}

trap 'exit 0' INT TERM
name=
while true; do
    # If the answer of a claim is lost, the next claim with its name gets the same job
    name=${name:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}
    wish=$(jq -nc --arg entrypoint "$entrypoint" --arg name "$name" \
        '{entrypoints: [$entrypoint], claim_timeout: 600, call: $name}')
    if ! answer=$(post "/v1/claims?wait=30" "$wish"); then
        echo "$answer" >&2
        sleep 1
        continue
    fi
    name=
    claim=$(printf %s "$answer" | jq -r '.jobs[] | "/v1/claims/\(.id | @uri)/\(.attempt)"')
    test -n "$claim" || continue
    printf %s "$answer" | jq -r '.jobs[].payload' | base64 -d | "$@"
    status=$?
    if test $status -eq 0; then
        post "$claim/ack" '{}'
    else
        post "$claim/nack" "{\"error\": \"the command ended with $status\", \"delay\": 60}"
    fi
done
