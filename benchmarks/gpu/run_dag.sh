#!/usr/bin/env bash
# run_dag.sh PREFIX CONFIG[,CONFIG...] [EXPERIMENT STEP]: the whole DAG in this directory, and Snakemake's report of it.
# With EXPERIMENT and STEP a rank of that experiment's trainer is killed once at that step; Snakemake is called again
# unless it went on by itself. PROFILE=slurm: `snakemake --profile slurm`, else the local profile. dag.log holds the
# times of the calls.
set -u
prefix=$1
IFS=, read -ra overlays <<< "$2"
. "$prefix/activate.sh"
here=$(dirname "$0")
files=(config/config.yaml "${overlays[@]}" "$prefix/machine.yaml")
profile=(--profile profiles/local --cores 4)
if [ "${PROFILE:-local}" = slurm ]; then
  profile=(--profile slurm --slurm-init-seconds-before-status-checks 4 --latency-wait 5)
fi
chain() {
  date +"%s start"
  snakemake "${profile[@]}" --scheduler greedy --keep-going --configfile "${files[@]}"
  code=$?
  date +"%s end rc $code"
  return $code
}
{
  if [ $# -gt 2 ]; then
    python "$here/kill_trainer.py" "results/$3" "$4" killed.json &
    killer=$!
    chain
    code=$?
    kill $killer 2> /dev/null
    echo "killed: $(cat killed.json 2> /dev/null)"
    [ $code != 0 ] && [ -e killed.json ] && chain
  else
    chain
  fi
  [ -n "${SLURM_CONF:-}" ] && squeue --all --states=all --format="%i %j %T %b %M %l %N %k"
  snakemake --profile profiles/local --configfile "${files[@]}" --report snakemake-report.html
} > dag.log 2>&1
