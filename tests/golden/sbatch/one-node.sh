#!/bin/bash

# Parameters
#SBATCH --comment='train_grpo main 0123456789ab-DIRECTORY'
#SBATCH --job-name=grpoflow-main
#SBATCH --mem=16000M
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=/project/results/main/runs/0123456789ab/submitit/%j_0_log.out
#SBATCH --requeue
#SBATCH --signal=CONT@1
#SBATCH --time=1440

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /project/results/main/runs/0123456789ab/submitit/%j_%t_log.out --kill-on-bad-exit=0 --wait=0 --cpu-bind=none /env/bin/python -u -m submitit.core._submit /project/results/main/runs/0123456789ab/submitit
