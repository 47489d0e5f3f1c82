#!/usr/bin/env bash
# slurm.sh DEBS ROOT: a Slurm of one node on this machine, its GPUs as gres; ROOT/env.sh says how to reach it.
#
# DEBS has Debian 12's packages of Slurm 22.05 and of what they need (`apt-get download`): slurmctld slurmd slurm-client
# slurm-wlm-basic-plugins munge libmunge2 libhwloc15 libnuma1 libdbus-1-3 libltdl7 libgcrypt20 libgpg-error0 libreadline8
# libtinfo6 liblua5.3-0 libfreeipmi17 libipmimonitoring6 librrd8 libjson-c5 libhttp-parser2.9 libyaml-0-2 libpmix2 libpam0g
# libxnvctrl0 libevent-core-2.1-7 libevent-pthreads-2.1-7 libpci3 libudev1 ocl-icd-libopencl1. They are unpacked, not
# installed, and run on another distribution: of the libraries only those are used that the machine lacks. As root.
set -eu
debs=$(realpath "$1") root=$2
libraries=/usr/lib/x86_64-linux-gnu unpacked=$root/packages host=$(hostname -s)
mkdir -p "$unpacked" "$root"/{etc,log,state,spool,run,lib}
for deb in "$debs"/*.deb; do dpkg -x "$deb" "$unpacked"; done
cp -a "$unpacked$libraries/slurm-wlm" $libraries/ # where the plugins look for themselves
for program in "$unpacked"/usr/{s,}bin/*; do
  ln -sfn "$program" "/usr/local/bin/$(basename "$program" | sed 's/-wlm$//')"
done
ln -sfn "$(readlink -f /usr/local/bin/slurmstepd)" /usr/sbin/slurmstepd
for library in "$unpacked$libraries"/*.so.* "$unpacked"/lib/x86_64-linux-gnu/*.so.*; do
  name=$(basename "$library")
  ldconfig -p | grep -q " $name" || [ -e "$libraries/$name" ] || ln -sfn "$library" "$root/lib/$name"
done
export LD_LIBRARY_PATH="$root/lib:${LD_LIBRARY_PATH:-}"
getent hosts "$host" > /dev/null || echo "127.0.0.1 $host" >> /etc/hosts

dd if=/dev/urandom of="$root/munge.key" bs=128 count=1 status=none
chmod 400 "$root/munge.key"
chmod 755 "$root" "$root/run"
munged --force --key-file="$root/munge.key" --socket="$root/run/munge.socket" --pid-file="$root/run/munged.pid" \
  --log-file="$root/log/munged.log" --seed-file="$root/seed"
gpus=$(ls /dev/nvidia[0-9]* | wc -l)
cat > "$root/etc/slurm.conf" << END
ClusterName=gpu
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$root/run/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
StateSaveLocation=$root/state
SlurmdSpoolDir=$root/spool
SlurmctldPidFile=$root/run/slurmctld.pid
SlurmdPidFile=$root/run/slurmd.pid
SlurmctldLogFile=$root/log/slurmctld.log
SlurmdLogFile=$root/log/slurmd.log
ReturnToService=2
MinJobAge=3600
KillWait=5
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
GresTypes=gpu
DefMemPerCPU=1000
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) RealMemory=100000 Gres=gpu:h200:$gpus State=UNKNOWN
PartitionName=gpu Nodes=$host Default=YES MaxTime=INFINITE DefaultTime=60 State=UP
END
for number in $(seq 0 $((gpus - 1))); do
  echo "NodeName=$host Name=gpu Type=h200 File=/dev/nvidia$number"
done > "$root/etc/gres.conf"
printf "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n" > "$root/etc/cgroup.conf" # cgroup/v2 asks for dbus
mkdir -p /etc/slurm
ln -sfn "$root"/etc/*.conf /etc/slurm/
slurmctld -f "$root/etc/slurm.conf"
slurmd -f "$root/etc/slurm.conf"
for _ in $(seq 30); do
  [ "$(sinfo -h -o %t)" = idle ] && break
  sleep 1
done
echo "export SLURM_CONF=$root/etc/slurm.conf LD_LIBRARY_PATH=\"$root/lib:\${LD_LIBRARY_PATH:-}\"" > "$root/env.sh"
sinfo -N -o "%N %t %G %c %m"
