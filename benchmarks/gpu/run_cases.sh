#!/usr/bin/env bash
# run_cases.sh PREFIX RESULTS LIST [CASE...]: the cases of LIST, or those of them that are named, one after the other.
# A line of LIST is `case seconds [suffix]`: the seconds of its programs (making a model comes on top), and the suffix of
# its environment, PREFIX-suffix, where that is not PREFIX. A case without its environment is left out. RESULTS/CASE.json
# is there as soon as a case has ended or its time is up, RESULTS/LIST.log says when. A case whose result is there is left
# out, so the script can be called again, on another machine too. Give it a session of its own (setsid) where a call is
# shorter.
set -u
prefix=$1 results=$2 list=$3
shift 3
. "$prefix/activate.sh"
here=$(dirname "$0")
log=$results/$(basename "$list" .list).log
mkdir -p "$results"
say() { echo "$(date +%s) $*" >> "$log"; }
while read -r name seconds suffix; do
  [ -z "$name" ] || [ -e "$results/$name.json" ] && continue
  [ $# = 0 ] || [[ " $* " == *" $name "* ]] || continue
  with=$prefix${suffix:+-$suffix}
  if [ ! -e "$with/machine.yaml" ]; then
    say "$name left out: there is no $with"
    continue
  fi
  # the checkpoint of 9B and the model of 35B-A3B do not fit on a small disk together
  [ "$name" = eight-9b-server ] && rm -rf resources/gpu/35b-a3b
  say "$name begins; $(df -h --output=avail . | tail -1) free"
  "$with/bin/python" "$here/run_case.py" "$with" "$name" "$results/$name.json" "$seconds" < /dev/null >> "$log" 2>&1
  say "$name ended with $?"
  for part in first.log first.server.log resumed.log resumed.server.log; do
    [ -e "cases/$name/$part" ] && tail -c 200000 "cases/$name/$part" | gzip > "$results/$name.$part.gz"
  done
done < "$list"
