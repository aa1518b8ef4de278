#!/bin/sh
# A script that does not run twice, on one machine or on many: REDIS_URL is the server.
set -u
wheellock run --no-wait everyday:report -- sh -c 'echo "report: token $WHEELLOCK_TOKEN"; sleep "$0"' "${1:-1}"
case $? in
    0) echo "report: done" ;;
    1) echo "report: runs elsewhere" ;;
    123) echo "report: the lock was lost, so another may have run it too" ;;
    *) echo "report: failed" && exit 1 ;;
esac
