#!/bin/sh
# every_command.sh DRIVERS PROGRAM…: runs PROGRAM (the test client, perhaps under a checker) on the fake driver, with
# limits from the environment, and lets it allocate in every way, launch under a limit, race and fork.
set -eu
drivers=$(cd "$1" && pwd)
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
printf 'cards: [{model: A100-SXM4-80GB}]\n' >"$folder/inventory.yaml"
{
  echo "device 0"
  for kind in plain pitch managed async pool vmm array array3d mipmap; do echo "alloc $kind 8388608"; done
  printf 'alloc plain 4096\ninfo\nnvml 0\nprocesses 0\nkernel k_20us\nlaunch 50 sync\ngraph 5\nmix k_20us k_100us\nrun 20\n'
  printf 'race 4194304 300\nthreads 4 1048576 200\nfreeas cuMemFree_v2\nfreeall\ncontext 0\nfree\nquit\n'
} >"$folder/commands"
mkdir "$folder/fake"
export LD_LIBRARY_PATH="$drivers" GPUSLICE_FAKE_INVENTORY="$folder/inventory.yaml" GPUSLICE_FAKE_STATE="$folder/fake"
export CUDA_DEVICE_MEMORY_LIMIT=1g CUDA_DEVICE_SM_LIMIT=50 CUDA_DEVICE_MEMORY_SHARED_CACHE="$folder/state"
"$@" <"$folder/commands" >"$folder/answers"
commands=$(wc -l <"$folder/commands")
good=$(grep -c '^0' "$folder/answers")
# One answer more than commands but "quit": the greeting.
[ "$good" -eq "$commands" ] || { cat "$folder/answers"; exit 1; }
echo "$good of $commands answers good, no error"
