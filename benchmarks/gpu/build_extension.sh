#!/usr/bin/env bash
# build_extension.sh OUT: Transformer Engine's PyTorch extension as a wheel, for Python 3.12 and torch 2.11.0 (cu130).
# Run in an environment with that Python and torch, and the CUDA 13.0 headers in CUDA_HOME. 32 C++ files, no kernels:
# 10 minutes on two cores at -O1.
set -eu
out=$(realpath -m "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CUDA_HOME=${CUDA_HOME:-/usr/local/cuda-13.0}
export NVTE_BUILD_USE_NVIDIA_WHEELS=1 NVTE_PYTORCH_FORCE_BUILD=TRUE NVTE_FRAMEWORK=pytorch
export MAX_JOBS=${MAX_JOBS:-2} NVTE_BUILD_MAX_JOBS=${MAX_JOBS:-2} CPATH=$CUDA_HOME/include
cd "$work"
python3 -m pip download -q --no-deps --no-binary=:all: --no-build-isolation transformer-engine-torch==2.12.0
tar -xzf transformer_engine_torch-2.12.0.tar.gz
cd transformer_engine_torch-2.12.0
# -O3 takes three times as long, and the work is in the kernels of the other wheel
sed -i 's/"-O3", "-fvisibility=hidden"/"-O1", "-fvisibility=hidden"/' build_tools/pytorch.py
python3 setup.py -q bdist_wheel -d "$out"
