#!/bin/bash

# Parameters
#SBATCH --account=train
#SBATCH --comment='train_grpo main 0123456789ab-DIRECTORY'
#SBATCH --constraint=ib
#SBATCH --cpus-per-task=64
#SBATCH --exclusive
#SBATCH --gres=gpu:a800:8
#SBATCH --job-name=grpoflow-main
#SBATCH --mem=900000M
#SBATCH --nice=10
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=/project/results/main/runs/0123456789ab/submitit/%j_0_log.out
#SBATCH --partition=a800
#SBATCH --qos=long
#SBATCH --requeue
#SBATCH --reservation=rl
#SBATCH --signal=CONT@1
#SBATCH --time=2880

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /project/results/main/runs/0123456789ab/submitit/%j_%t_log.out --kill-on-bad-exit=0 --wait=0 --cpu-bind=none --cpus-per-task=64 /env/bin/python -u -m submitit.core._submit /project/results/main/runs/0123456789ab/submitit
