#!/usr/bin/env bash
# run_dag.sh PREFIX CONFIG[,CONFIG...] [EXPERIMENT STEP]: the whole DAG with the local profile, in this directory.
# With EXPERIMENT and STEP a rank of that experiment's trainer is killed once at that step, and Snakemake is called
# again, which must resume the run. dag.log holds the times of both calls.
set -u
prefix=$1
IFS=, read -ra overlays <<< "$2"
. "$prefix/activate.sh"
here=$(dirname "$0")
chain() {
  date +"%s start"
  snakemake --profile profiles/local --cores 4 --scheduler greedy --keep-going \
    --configfile config/config.yaml "${overlays[@]}" "$prefix/machine.yaml"
  code=$?
  date +"%s end rc $code"
}
{
  if [ $# -gt 2 ]; then
    python "$here/kill_trainer.py" "results/$3" "$4" killed.json &
    chain
    echo "killed: $(cat killed.json 2>/dev/null)"
    [ -e killed.json ] && chain
  else
    chain
  fi
} > dag.log 2>&1
