#!/usr/bin/env bash
# eight.sh PREFIX RESULTS [CASE...]: the cases of eight GPUs, one after the other; RESULTS/CASE.json is there as soon as
# a case has ended or its time is up, RESULTS/eight.log says when. A case whose result is there is left out, so the
# script can be called again, on another machine too. Give it a session of its own (setsid) where a call is shorter.
# Seconds are those of the programs; making a model comes on top. The case of ZeRO-3 takes the environment
# PREFIX-deepspeed where there is one, so that no other program finds DeepSpeed.
set -u
prefix=$1 results=$2
shift 2
. "$prefix/activate.sh"
here=$(dirname "$0")
mkdir -p "$results"
while read -r name seconds; do
  [ -z "$name" ] || [ -e "$results/$name.json" ] && continue
  [ $# = 0 ] || [[ " $* " == *" $name "* ]] || continue
  # the checkpoint of 9B and the model of 35B-A3B do not fit on a small disk together
  [ "$name" = eight-9b-server ] && rm -rf resources/gpu/35b-a3b
  with=$prefix
  [ "$name" = eight-35b-zero3 ] && [ -d "$prefix-deepspeed" ] && with=$prefix-deepspeed
  echo "$(date +%s) $name begins; $(df -h --output=avail . | tail -1) free" >> "$results/eight.log"
  "$with/bin/python" "$here/run_case.py" "$with" "$name" "$results/$name.json" "$seconds" \
    < /dev/null >> "$results/eight.log" 2>&1
  echo "$(date +%s) $name ended with $?" >> "$results/eight.log"
  for log in first.log first.server.log resumed.log resumed.server.log; do
    [ -e "cases/$name/$log" ] && tail -c 200000 "cases/$name/$log" | gzip > "$results/$name.$log.gz"
  done
done << END
  eight-35b-lora 360
  eight-35b-full 420
  eight-35b-zero3 360
  eight-9b-server 480
END
