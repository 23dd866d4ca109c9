"""Patterns of console lines that tell why a training failed, with example lines.

Data alone: `console_log` reads a log with them. Of two patterns of one line the upper
counts, so each has a line here that it alone decides. Examples and healthy lines are
what the program prints, with its format filled in.
"""

from __future__ import annotations

import enum

import msgspec

SURVIVED = 3
"""Number of iterations after an error line that prove that training survived it."""

_SHARED_MEMORY = (
    r'(?:/dev/shm|</?torch_|[\'" ]/torch_\d|shared memory|shm\)|shm\.h|shmutils'
    r'|posix_fallocate|/pym-)'
)
"""Regex for names of files and segments in shared memory."""


_ENDED_WITH = (
    '(?:[Ee]xited|[Tt]erminated|[Ff]inished|[Ff]ailed|[Cc]ompleted|[Rr]eturned)'
    '(?: with)?:?(?: an?)?(?: non-zero)?(?: exit)?'
    '(?: status| code|_status|_code| exitcode)[ :=]{1,12}'
)
"""Regex for words before an exit code in a report on a started program."""
_EXIT_CODE = (
    r'(?:^\W{0,40}(?:[Ee]xit code|[Ee]xit status|Exit Code|Exit Status|exit_code'
    r'|exit_status)|[a-z]Error: ExitCode'
    r'|State: [A-Z_]{1,40} \(exit code)[ :=]{1,12}'
)
"""Regex for words before an exit code in a table or an exception."""
_NO_MORE = r"""(?:[.)\]"'}!]{0,4}$| \([^()]{0,80}\)\W{0,4}$)"""
"""Regex for the end of a line right after an exit code.

A help text goes on and says what the code means.
"""


class Order(enum.IntEnum):
    """Priority of an error line in a log with several; the smallest value wins."""

    STATED = 0
    """Priority of a line in which kernel or scheduler states what ended the run."""
    RESOURCE = 10
    """Priority of an error that names the exhausted resource or the fault itself."""
    HINTED = 15
    """Priority of an error that only hints at an exhausted resource or a fault."""
    WORKER = 20
    """Priority of an error in a DataLoader worker, or in loading a sample."""
    WATCHED = 22
    """Priority of a warning that the watchdog of GPUEfficiencyHook logged."""
    WRAPPED = 25
    LOST = 30
    """Priority of a line that reports the unexpected end of a DataLoader worker."""
    KILLED = 40
    """Priority of a line on the SIGKILL of a training process, not only of a worker."""
    KILLED_TOO = 45
    """Priority of a line on a SIGKILL, perhaps by a launcher that ended all ranks."""
    ENDED = 50
    """Priority of a line that says a person or the scheduler ended the training."""
    RAISED = 60
    """Priority of an exception that no pattern of a known failure matches."""
    AFTER = 70
    """Priority of a line that only follows from the end of a worker or the training."""
    PEERS = 80
    """Priority of a rank's error about other ranks, such as a collective's timeout."""
    PEER_GONE = 84
    CRASHED = 88
    WRAPPER = 90
    """Priority of a launcher's message that a program failed, without a cause."""


class NoNeighbour(enum.Enum):
    """Reason why a console pattern has no example of a similar but harmless line."""

    RAISED = 'an exception, of which a healthy training prints none alike'
    SILENT = 'its writer is silent about the matter while all is well'


class Sign(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Cause that a console line points to, with the line's priority and conditions."""

    cause: str
    order: Order
    is_sure: bool = False
    is_raised: bool = False
    """True if the line counts only as an exception or inside a traceback."""
    victim: str = ''
    """Kind of process killed: ``worker``, ``rank``, ``process`` or ``terminated``.

    The last is a worker that SIGTERM ended. Empty where the line reports no kill.
    """
    needs: str = ''
    """Name of a flag, such as ``shm``, that the traceback above the line must have."""
    survives: int = SURVIVED
    """Number of later iterations that prove that training survived the line's error.

    More where workers go on for a while.
    """


class Pattern(Sign, frozen=True, kw_only=True, eq=False):
    """Regex for a console line, with the cause that the line points to."""

    pattern: str
    example: str
    """Example of a matching line, after the lines that must precede it, if any."""
    healthy: str | NoNeighbour
    """Similar line that a healthy program prints, or the reason why there is none."""
    writer: str | None = None
    """Program that prints the line, with its source file; ``None`` if unknown."""
    since: str | None = None
    """First program version, or year, known to print the line; ``None`` if unknown."""


_JOB = r'\[\d{1,4}\]  [-+ ] (?:\d{1,9} )?'
"""Regex for a job's number as zsh prints it, before its lower-case state."""

_BASH_DONE = '[1]+  Done                    python tools/train.py'
_CUBLAS_TWICE = (
    'Unable to register cuBLAS factory: Attempting to register factory for plugin '
    'cuBLAS when one has already been registered'
)
_CUDNN_TWICE = _CUBLAS_TWICE.replace('cuBLAS', 'cuDNN')
_DEEPSPEED_ENDED = (
    '[2023-09-10 11:45:59,207] [INFO] [launch.py:348:main] Process 6293 exits '
    'successfully.'
)
_GLOO_CONNECTED = (
    '[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer '
    'ranks is : 1'
)
_HYDRA_WARNS = (
    '/env/lib/python3.9/site-packages/hydra/_internal/hydra.py:119: UserWarning: '
    'Future Hydra versions will no longer change working directory at job runtime by '
    'default.'
)
_INTEL_MPI_STARTS = (
    '[0] MPI startup(): Intel(R) MPI Library, Version 2021.9  Build 20230307'
)
_KUBERNETES_ASSIGNED = 'Successfully assigned default/trainer-0 to gpu-pool-7'
_LUSTRE_RESTORED = (
    'Lustre: scratch-OST0003-osc-ffff3000ef06c000: Connection restored to  (at '
    '10.0.0.1@o2ib)'
)
_MANY_WORKERS = (
    'UserWarning: This DataLoader will create 16 worker processes in total. Our '
    'suggested max number of worker in current system is 2, which is smaller than what '
    'this DataLoader is going to create.'
)
_MPIRUN_BOUND = (
    '[gpu7:11920] MCW rank 0 bound to socket 0[core 0[hwt 0-1]]: [BB/../..][../../..]'
)
_NVIDIA_SMI_LIST = (
    'GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)'
)
_NVRM_LOADS = (
    'NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 '
    'UTC 2023'
)
_OOM_SOCKET = (
    'systemd[1]: Listening on systemd-oomd.socket - Userspace Out-Of-Memory (OOM) '
    'Killer Socket.'
)
_RAY_SPILLS = (
    '(raylet) Spilled 2275 MiB, 4 objects, write throughput 1028 MiB/s. Set '
    'RAY_verbose_spill_logs=0 to disable this message.'
)
_SHMEM_NOTE = (
    'NOTE: The SHMEM allocation limit is set to the default of 64MB.  This may be'
)
_SLURM_LIMITS = (
    'slurmstepd: task/cgroup: /slurm/uid_1000/job_191: alloc=4096MB mem.limit=4096MB '
    'memsw.limit=unlimited'
)
_SRUN_ALLOCATED = 'srun: job 55595933 has been allocated resources'
_SRUN_WAITS = 'srun: job 55595933 queued and waiting for resources'
_TENSORBOARD_STARTS = (
    'TensorBoard 2.11.0 at http://localhost:6006/ (Press CTRL+C to quit)'
)
_TORCHRUN_ENDED = (
    'INFO:torch.distributed.elastic.agent.server.api:[default] worker group '
    'successfully finished. Waiting 300 seconds for other agents to finish.'
)
_TORCHRUN_STARTS = (
    'INFO:torch.distributed.elastic.agent.server.api:[default] Starting worker group'
)
_WATCHDOG_STARTS = '[I ProcessGroupNCCL.cpp:842] [Rank 0] NCCL watchdog thread started!'
_APEX_OVERFLOW = (
    'Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0'
)
_GROUP_NOT_DESTROYED = (
    '[rank0]:[W1231 10:00:00.12 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process '
    'group has NOT been destroyed before we destruct ProcessGroupNCCL.'
)
_OPEN_FILES_LIMIT = 'open files                          (-n) 65536'
_ZSH_DONE = '[1]  + 4123 done       python tools/train.py'
_WEIGHTS_ONLY_WARNING = (
    'FutureWarning: You are using `torch.load` with `weights_only=False` (the current '
    'default value), which uses the default pickle module implicitly.'
)

PATTERNS = (
    Pattern(
        cause='oom_cgroup',
        order=Order.STATED,
        pattern=r'Memory cgroup out of memory: Kill(?:ed)? process \d',
        example=(
            '[81234.6] Memory cgroup out of memory: Killed process 4123 (python) '
            'total-vm:61234120kB, anon-rss:51234008kB, file-rss:812kB, shmem-rss:0kB, '
            'UID:1000 pgtables:101212kB oom_score_adj:0'
        ),
        healthy=_OOM_SOCKET,
        writer='Linux, mm/oom_kill.c',
        is_sure=True,
    ),
    Pattern(
        cause='oom_cgroup',
        order=Order.STATED,
        pattern='oom-kill:constraint=CONSTRAINT_MEMCG,',
        example=(
            '[81234.5] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),'
            'cpuset=step_0,mems_allowed=0-1,oom_memcg=/slurm/uid_1000/job_191,'
            'task_memcg=/slurm/uid_1000/job_191/step_0,task=python,pid=991,uid=1000'
        ),
        healthy=_OOM_SOCKET,
        writer='Linux, mm/oom_kill.c',
        is_sure=True,
    ),
    Pattern(
        cause='oom_cgroup',
        order=Order.STATED,
        pattern=r'error: Detected [1-9]\d* oom[-_]kill event(?:s|\(s\))? in [Ss]tep',
        example=(
            'slurmstepd: error: Detected 1 oom_kill event in StepId=1054.0. Some of '
            'the step tasks have been OOM Killed.'
        ),
        healthy=_SLURM_LIMITS,
        writer='Slurm, src/plugins/task/cgroup/task_cgroup_memory.c',
        since='17.11',
        is_sure=True,
    ),
    Pattern(
        cause='oom_cgroup',
        order=Order.STATED,
        pattern=r'srun: error: \S+: tasks? [\d,-]+: Out Of Memory',
        example='srun: error: gpu04: task 0: Out Of Memory',
        healthy='srun: gpu1: task 0: Completed',
        writer='Slurm, src/srun/launch.c',
        since='17.02',
        is_sure=True,
    ),
    Pattern(
        cause='oom_cgroup',
        order=Order.STATED,
        pattern=r'\bOUT_OF_ME(?:MORY|\+) +\d+:\d+',
        example='191.batch         batch  OUT_OF_ME+      0:125',
        healthy='191.batch         batch   COMPLETED      0:0',
        writer='Slurm, src/common/slurm_protocol_defs.c',
        since='17.02',
        is_sure=True,
    ),
    Pattern(
        cause='oom_cgroup',
        order=Order.STATED,
        pattern=r'^\s*State: OUT_OF_MEMORY \(exit code \d',
        example='State: OUT_OF_MEMORY (exit code 0)',
        healthy='State: COMPLETED (exit code 0)',
        writer='Slurm, contribs/seff/seff',
        since='17.02',
        is_sure=True,
    ),
    Pattern(
        cause='oom_cgroup',
        order=Order.STATED,
        pattern=r'JobState=OUT_OF_MEMORY\b',
        example='   JobState=OUT_OF_MEMORY Reason=OutOfMemory Dependency=(null)',
        healthy='   JobState=RUNNING Reason=None Dependency=(null)',
        writer='Slurm, src/scontrol/info_job.c',
        since='17.02',
        is_sure=True,
    ),
    Pattern(
        cause='oom_cgroup',
        order=Order.STATED,
        pattern='(?:Ended|Failed), Run time .{1,40}, OUT_OF_MEMORY',
        example=(
            'Slurm Job_id=191 Name=train Failed, Run time 01:02:03, OUT_OF_MEMORY'
        ),
        healthy=(
            'Slurm Job_id=209194 Name=train Ended, Run time 00:00:55, COMPLETED, '
            'ExitCode 0'
        ),
        writer='Slurm, src/slurmctld/agent.c',
        since='17.02',
        is_sure=True,
    ),
    Pattern(
        cause='oom_cgroup',
        order=Order.STATED,
        pattern='[Rr]eason["\']?[:=] *["\']?OOMKilled(?:["\',}]|$)',
        example='      Reason:       OOMKilled',
        healthy='      Reason:       Completed',
        writer='Kubernetes, kubectl describe',
        is_sure=True,
    ),
    Pattern(
        cause='oom_cgroup',
        order=Order.STATED,
        pattern='"OOMKilled": true',
        example='            "OOMKilled": true,',
        healthy='            "OOMKilled": false,',
        writer='Docker, docker inspect',
        is_sure=True,
    ),
    Pattern(
        cause='oom_cgroup',
        order=Order.STATED,
        pattern=r'^\S+\s+\d/\d +OOMKilled +\d',
        example='trainer-0   0/1     OOMKilled   0          3m',
        healthy='trainer-0   1/1     Running   0          3m',
        writer='Kubernetes, kubectl get pods',
        is_sure=True,
    ),
    Pattern(
        cause='oom_cgroup',
        order=Order.STATED,
        pattern='(?:^|: )Exceeded (?:job|step) memory limit at some point',
        example='slurmstepd: error: Exceeded job memory limit at some point.',
        healthy=_SLURM_LIMITS,
        writer='Slurm, src/plugins/task/cgroup/task_cgroup_memory.c',
        since='2.6',
        is_sure=True,
    ),
    Pattern(
        cause='oom_cgroup',
        order=Order.STATED,
        pattern=(
            r'(?:Job |[Ss]tep |StepId=)\S+ exceeded (?:virtual )?memory limit \(\d'
        ),
        example=(
            'slurmstepd: error: StepId=191.batch exceeded memory limit (734003200 > '
            '52428800), being killed'
        ),
        healthy=_SLURM_LIMITS,
        writer='Slurm, src/interfaces/jobacct_gather.c',
        since='1.3',
        is_sure=True,
    ),
    Pattern(
        cause='oom_cgroup',
        order=Order.STATED,
        pattern='TERM_MEMLIMIT: job killed after',
        example='TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.',
        healthy='    Max Memory :                                 812 MB',
        writer="LSF, a job's report",
        since='2014',
        is_sure=True,
    ),
    Pattern(
        cause='oom_cgroup',
        order=Order.STATED,
        pattern=r'PBS: job killed: v?mem \S+ exceeded limit',
        example='=>> PBS: job killed: vmem 8404504kb exceeded limit 8388608kb',
        healthy='    resources_used.vmem = 8404504kb',
        writer='OpenPBS, src/resmom/mom_main.c',
        since='14.1',
        is_sure=True,
    ),
    Pattern(
        cause='oom_cgroup',
        order=Order.HINTED,
        pattern=(
            r'(?:[Jj]ob |[Ss]tep |StepId=)\d\S* hit memory(?:\+swap)? limit '
            'at least once'
        ),
        example=(
            'slurmstepd: error: Step 3495064.0 hit memory+swap limit at least once '
            'during execution. This may or may not result in some failure.'
        ),
        healthy=_SLURM_LIMITS,
        writer='Slurm, src/plugins/task/cgroup/task_cgroup_memory.c',
        since='17.11',
    ),
    Pattern(
        cause='oom_host',
        order=Order.STATED,
        pattern=r'(?<!cgroup )[Oo]ut of memory: Kill(?:ed)? process \d',
        example=(
            '[81234.6] Out of memory: Killed process 991 (python) total-vm:61234120kB, '
            'anon-rss:51234008kB, file-rss:812kB, shmem-rss:0kB, UID:1000 '
            'pgtables:101212kB oom_score_adj:0'
        ),
        healthy=_OOM_SOCKET,
        writer='Linux, mm/oom_kill.c',
        is_sure=True,
    ),
    Pattern(
        cause='oom_host',
        order=Order.STATED,
        pattern='oom-kill:constraint=CONSTRAINT_(?:NONE|CPUSET),',
        example=(
            '[81234.5] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,'
            'mems_allowed=0-1,global_oom,task_memcg=/user.slice/user-1000.slice,'
            'task=python,pid=991,uid=1000'
        ),
        healthy=_OOM_SOCKET,
        writer='Linux, mm/oom_kill.c',
        is_sure=True,
    ),
    Pattern(
        cause='oom_host',
        order=Order.STATED,
        pattern=r'systemd-oomd(?:\[\d+\])?: Killed /',
        example=(
            'systemd-oomd[650]: Killed /user.slice/user-1000.slice/train.scope due to '
            'memory pressure for /user.slice/user-1000.slice being 62.11% > 50.00% for '
            '> 20s with reclaim activity'
        ),
        healthy=_OOM_SOCKET,
        writer='systemd, src/oom/oomd-manager.c',
        since='247',
        is_sure=True,
    ),
    Pattern(
        cause='oom_host',
        order=Order.STATED,
        pattern=(
            r'\.(?:scope|service|slice): systemd-oomd killed \d+ process\(es\) '
            'in this unit'
        ),
        example='train.scope: systemd-oomd killed 5 process(es) in this unit.',
        healthy=_OOM_SOCKET,
        writer='systemd, src/core/unit.c',
        is_sure=True,
    ),
    Pattern(
        cause='oom_host',
        order=Order.STATED,
        pattern=(
            r'sending SIG(?:TERM|KILL) to process \d+ .{0,80}(?:badness|oom_score)'
        ),
        example=(
            'earlyoom[611]: sending SIGTERM to process 991 uid 1000 "python": '
            'badness 812, VmRSS 61234 MiB'
        ),
        healthy=(
            'earlyoom[611]: sending SIGTERM when mem avail <= 10.00% and swap free '
            '<= 10.00%,'
        ),
        writer='earlyoom, kill.c',
        since='1.3',
        is_sure=True,
    ),
    Pattern(
        cause='oom_host',
        order=Order.STATED,
        pattern='The node was low on resource: memory[.]',
        example=(
            'The node was low on resource: memory. Threshold quantity: 100Mi, '
            'available: 17348Ki.'
        ),
        healthy='Node gpu-pool-7 status is now: NodeHasSufficientMemory',
        writer='Kubernetes, pkg/kubelet/eviction/helpers.go',
        is_sure=True,
    ),
    Pattern(
        cause='oom_host',
        order=Order.STATED,
        pattern=(r'[1-9]\d* Workers \(tasks / actors\) killed due to memory pressure'),
        example=(
            '(raylet) node_manager.cc:3040: 1 Workers (tasks / actors) killed due to '
            'memory pressure (OOM), 0 Workers crashed due to other reasons at node '
            '(ID: 2c8262, IP: 10.0.0.7) over the last time period.'
        ),
        healthy=_RAY_SPILLS,
        writer='Ray, src/ray/raylet/node_manager.cc',
        is_sure=True,
    ),
    Pattern(
        cause='oom_host',
        order=Order.STATED,
        pattern='OutOfMemoryError: Task was killed due to the node',
        example=(
            'ray.exceptions.OutOfMemoryError: Task was killed due to the node running '
            'low on memory.'
        ),
        healthy=_RAY_SPILLS,
        writer='Ray, python/ray/exceptions.py',
        is_sure=True,
    ),
    Pattern(
        cause='oom_host',
        order=Order.STATED,
        pattern='^Your session crashed after using all available RAM',
        example='Your session crashed after using all available RAM.',
        healthy=NoNeighbour.SILENT,
        writer='Google Colab',
    ),
    Pattern(
        cause='oom_host',
        order=Order.STATED,
        pattern='^Your notebook tried to allocate more memory than is available',
        example=(
            'Your notebook tried to allocate more memory than is available. It has '
            'restarted.'
        ),
        healthy=NoNeighbour.SILENT,
        writer='Kaggle',
    ),
    Pattern(
        cause='oom_host',
        order=Order.STATED,
        pattern='A process of this unit has been killed by the OOM killer',
        example=(
            'train.service: A process of this unit has been killed by the OOM killer.'
        ),
        healthy='train.service: Consumed 1min 2.345s CPU time.',
        writer='systemd, src/core/unit.c',
    ),
    Pattern(
        cause='oom_host',
        order=Order.STATED,
        pattern=r"\.(?:scope|service|slice): Failed with result 'oom-kill'",
        example="train.service: Failed with result 'oom-kill'.",
        healthy='train.service: Deactivated successfully.',
        writer='systemd, src/core/unit.c',
    ),
    Pattern(
        cause='disk_full',
        order=Order.STATED,
        pattern='The node was low on resource: ephemeral-storage[.]',
        example=(
            'The node was low on resource: ephemeral-storage. Threshold quantity: '
            '10120387530, available: 9872152Ki.'
        ),
        healthy='Node gpu-pool-7 status is now: NodeHasNoDiskPressure',
        writer='Kubernetes, pkg/kubelet/eviction/helpers.go',
        is_sure=True,
    ),
    Pattern(
        cause='disk_full',
        order=Order.STATED,
        pattern='Pod ephemeral local storage usage exceeds the total limit of',
        example=(
            'Pod ephemeral local storage usage exceeds the total limit of containers '
            '1Gi.'
        ),
        healthy='Node gpu-pool-7 status is now: NodeHasNoDiskPressure',
        writer='Kubernetes, pkg/kubelet/eviction/helpers.go',
        is_sure=True,
    ),
    Pattern(
        cause='disk_full',
        order=Order.STATED,
        pattern=r'Container \S+ exceeded its local ephemeral storage limit "',
        example='Container trainer exceeded its local ephemeral storage limit "1Gi".',
        healthy='Node gpu-pool-7 status is now: NodeHasNoDiskPressure',
        writer='Kubernetes, pkg/kubelet/eviction/helpers.go',
        is_sure=True,
    ),
    Pattern(
        cause='gpu_lost',
        order=Order.STATED,
        pattern=(
            r'NVRM: Xid \((?:PCI:)?[\dA-Fa-f]{4,8}:[\dA-Fa-f]{2}:[^)]{1,20}\): '
            r'(?:48|62|63|64|74|79|92|94|95|1(?:10|19|20|21|40|43))\b'
        ),
        example=(
            "[347.1] NVRM: Xid (PCI:0000:02:00): 79, pid='<unknown>', name=<unknown>, "
            'GPU has fallen off the bus.'
        ),
        healthy=(
            'NVRM: Xid (PCI:0000:02:00): 31, pid=777, name=other, Ch 00000010, intr '
            '00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted'
        ),
        writer="NVIDIA's driver, its kernel module",
        is_sure=True,
    ),
    Pattern(
        cause='gpu_lost',
        order=Order.STATED,
        pattern=(
            'NVRM: (?:GPU|The NVIDIA GPU|installed in)[^=]{0,120}has fallen off the bus'
        ),
        example='NVRM: GPU 0000:02:00.0: GPU has fallen off the bus.',
        healthy=_NVRM_LOADS,
        writer="NVIDIA's driver, src/nvidia/arch/nvalloc/unix/src/osinit.c",
        is_sure=True,
    ),
    Pattern(
        cause='gpu_lost',
        order=Order.STATED,
        pattern=(
            r'(?i:(?:GPU ?[\da-f]{4}[\w:.]*|NVML\w*|nvml error): GPU is lost'
            r'(?:\.|$))'
        ),
        example='pynvml.NVMLError_GpuIsLost: GPU is lost',
        healthy=_NVIDIA_SMI_LIST,
        writer='nvidia-smi and nvidia-ml-py, pynvml.py',
        is_sure=True,
    ),
    Pattern(
        cause='gpu_lost',
        order=Order.STATED,
        pattern=(
            r'Unable to determine the device handle for GPU ?(?:\d+: )?[\dA-Fa-f]{4,8}:'
        ),
        example=(
            'Unable to determine the device handle for GPU0000:CB:00.0: Unknown Error'
        ),
        healthy=_NVIDIA_SMI_LIST,
        writer='nvidia-smi',
        since='369.30',
        is_sure=True,
    ),
    Pattern(
        cause='gpu_lost',
        order=Order.STATED,
        pattern=r'(?:GPU ?[\dA-Fa-f]{4}[\w:.]*|NVML\w*): GPU requires re(?:set|start)',
        example='pynvml.NVMLError_ResetRequired: GPU requires restart',
        healthy='        Reset Required                        : No',
        writer='nvidia-smi and nvidia-ml-py, pynvml.py',
    ),
    Pattern(
        cause='gpu_lost',
        order=Order.STATED,
        pattern='NVRM: .{0,60}RmInitAdapter failed!',
        example='NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x26:0x56:1474)',
        healthy=_NVRM_LOADS,
        writer="NVIDIA's driver, src/nvidia/arch/nvalloc/unix/src/osinit.c",
    ),
    Pattern(
        cause='storage_stalled',
        order=Order.HINTED,
        pattern=r'nfs: server \S+ not responding, (?:still trying|timed out)',
        example='[99.1] nfs: server filer01 not responding, still trying',
        healthy='[99.9] nfs: server filer01 OK',
        writer='Linux, net/sunrpc/clnt.c',
    ),
    Pattern(
        cause='storage_stalled',
        order=Order.HINTED,
        pattern=r'ceph: (?:mds|mon)\d.{0,80}(?:hung|session lost)',
        example='libceph: mon0 (1)10.0.0.1:6789 session lost, hunting for new mon',
        healthy='libceph: mon0 (1)10.0.0.1:6789 session established',
        writer='Linux, net/ceph/mon_client.c',
    ),
    Pattern(
        cause='storage_stalled',
        order=Order.HINTED,
        pattern='Lustre: .{0,120}was lost; in progress',
        example=(
            'Lustre: scratch-OST0003-osc-ffff3000ef06c000: Connection to '
            'scratch-OST0003 (at 10.0.0.1@o2ib) was lost; in progress operations using '
            'this service will wait for recovery to complete'
        ),
        healthy=_LUSTRE_RESTORED,
        writer='Lustre, lustre/ptlrpc/import.c',
        since='1.4',
    ),
    Pattern(
        cause='storage_stalled',
        order=Order.HINTED,
        pattern='LustreError: .{0,120}(?:rc = -107|evicted by)',
        example=(
            'LustreError: 167-0: scratch-OST0003-osc-ffff3000ef06c000: This client was '
            'evicted by scratch-OST0003; in progress operations using this service '
            'will fail.'
        ),
        healthy=_LUSTRE_RESTORED,
        writer='Lustre, lustre/ptlrpc/import.c',
        since='1.4',
    ),
    Pattern(
        cause='storage_stalled',
        order=Order.HINTED,
        pattern=(
            r'task (?:python|pt_data_worker)\S*:\d+ blocked for more than \d+ seconds'
        ),
        example='[12345.6] INFO: task python:4123 blocked for more than 120 seconds.',
        healthy=(
            '[16097.9] INFO: task kworker/18:1:32111 blocked for more than 122 seconds.'
        ),
        writer='Linux, kernel/hung_task.c',
    ),
    Pattern(
        cause='preempted',
        order=Order.ENDED,
        pattern=(
            r'\*\*\* (?:JOB|STEP) \S+ (?:ON \S+ )?CANCELLED AT \S+ DUE TO '
            r'(?:TIME|PREEMPT|NODE|JOB)'
        ),
        example=(
            'slurmstepd: error: *** JOB 37361369 ON learn5 CANCELLED AT '
            '2021-03-15T18:00:46 DUE TO PREEMPTION ***'
        ),
        healthy=_SRUN_WAITS,
        writer='Slurm, src/slurmd/slurmstepd/req.c',
        since='2.3',
        is_sure=True,
    ),
    Pattern(
        cause='preempted',
        order=Order.ENDED,
        pattern='TERM_(?:PREEMPT|RUNLIMIT): job killed after',
        example='TERM_RUNLIMIT: job killed after reaching LSF run time limit.',
        healthy='    Run time :                                   3641 sec.',
        writer="LSF, a job's report",
        is_sure=True,
    ),
    Pattern(
        cause='preempted',
        order=Order.ENDED,
        pattern=r'PBS: job killed: walltime \S+ exceeded limit',
        example='=>> PBS: job killed: walltime 3611 exceeded limit 3600',
        healthy='    resources_used.walltime = 01:00:03',
        writer='OpenPBS, src/resmom/mom_main.c',
        since='14.1',
        is_sure=True,
    ),
    Pattern(
        cause='preempted',
        order=Order.ENDED,
        pattern=r'\bjob \d\S* exceeded hard wallclock time',
        example='job 48.1 exceeded hard wallclock time - initiate terminate method',
        healthy='hard resource_list:         h_rt=86400',
        writer='Grid Engine, source/daemons/execd/msg_execd.h',
        since='2001',
        is_sure=True,
    ),
    Pattern(
        cause='preempted',
        order=Order.ENDED,
        pattern=r'(?:^|on \S{1,64}: )this job is (?:preempted|timed-out)(?:\.|$)',
        example=(
            'submitit WARNING (2022-08-12 02:06:11,453) - Caught signal SIGUSR2 on '
            'gpu1: this job is timed-out.'
        ),
        healthy=(
            'submitit INFO (2022-08-12 02:00:11,453) - Starting with JobEnvironment('
            'job_id=191, hostname=gpu1, local_rank=0(1), node=0(1), global_rank=0(1))'
        ),
        writer='submitit, submitit/core/job_environment.py',
        since='1.0',
        is_sure=True,
    ),
    Pattern(
        cause='preempted',
        order=Order.ENDED,
        pattern=r'Preempted in order to admit \S',
        example='Preempted in order to admit critical pod',
        healthy=_KUBERNETES_ASSIGNED,
        writer='Kubernetes, pkg/kubelet/preemption/preemption.go',
        is_sure=True,
    ),
    Pattern(
        cause='preempted',
        order=Order.ENDED,
        pattern=r'Preempted by (?:pod \S+|\S+/\S+) on node \S',
        example=(
            'Normal  Preempted  9s  default-scheduler  Preempted by pod '
            '56e257bf-2145-4451-a43f-7d83c0566e57 on node gpu-pool-7'
        ),
        healthy=_KUBERNETES_ASSIGNED,
        writer='Kubernetes, pkg/scheduler/framework/preemption/preemption.go',
        is_sure=True,
    ),
    Pattern(
        cause='preempted',
        order=Order.ENDED,
        pattern=(
            r'(?i:(?:^|[:\]] |")(?:(?:the|this|your) )?(?:job|instance)'
            r'(?: [\'"]?[\w.-]{1,40}[\'"]?)? '
            r'(?:was|has been|is being) preempted(?:[.!:]|$| by | at ))'
        ),
        example='Instance was preempted.',
        healthy='  preemptible: true',
        writer='Google Compute Engine, operation compute.instances.preempted',
        is_sure=True,
    ),
    Pattern(
        cause='preempted',
        order=Order.ENDED,
        pattern=(
            r'(?i:(?:^|[:\]] )(?:received )?(?:an? |the )?(?:EC2 )?spot instance '
            r'(?:interruption notice(?:[:.,;]| received| for |$)|'
            r'will be (?:interrupted|terminated)(?:[:.]| at\b|$)))'
        ),
        example='Spot instance will be terminated at: 2024-01-01T00:00:00Z',
        healthy='  provisioningModel: SPOT',
    ),
    Pattern(
        cause='preempted',
        order=Order.ENDED,
        pattern='(?i:(?:received|got|caught) (?:a )?preemption (?:signal|notice))',
        example='Received preemption notice with death time: 2024-05-01T10:00:30+00:00',
        healthy='INFO:tensorflow:PreemptionCheckpointHandler initialized or restored.',
        writer='XLA and TensorFlow, tsl/distributed_runtime/preemption',
    ),
    Pattern(
        cause='preempted',
        order=Order.ENDED,
        pattern=r'[Rr]eason: +(?:Preempt(?:ed|ing)|Evicted)\s*$',
        example='Reason:           Evicted',
        healthy='      Reason:       Completed',
        writer='Kubernetes, kubectl describe',
    ),
    Pattern(
        cause='preempted',
        order=Order.ENDED,
        pattern=r'[Rr]eason: +DeadlineExceeded\s*$',
        example='Reason:           DeadlineExceeded',
        healthy='      Reason:       Completed',
        writer='Kubernetes, pkg/kubelet/active_deadline.go',
    ),
    Pattern(
        cause='interrupted',
        order=Order.ENDED,
        pattern=r'(?:^|[\s:\]])KeyboardInterrupt(?::|$)',
        example='KeyboardInterrupt',
        healthy='Press Ctrl-C to quit',
        writer='Python',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='interrupted',
        order=Order.ENDED,
        pattern=r'SignalException: .{0,300}got signal: (?:1|2|15)\b',
        example=(
            'torch.distributed.elastic.multiprocessing.api.SignalException: Process '
            '4000 got signal: 2'
        ),
        healthy=_TORCHRUN_STARTS,
        writer='PyTorch, torch/distributed/elastic/multiprocessing/api.py',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='interrupted',
        order=Order.ENDED,
        pattern=r'^\^C(?:\s*$|\S)',
        example='^C',
        healthy=_TENSORBOARD_STARTS,
        writer='the terminal: Linux, drivers/tty/n_tty.c',
        is_sure=True,
    ),
    Pattern(
        cause='interrupted',
        order=Order.ENDED,
        pattern=r"""[^\s"'(\[`]\^C$""",
        example='loss: 0.5^C',
        healthy=_TENSORBOARD_STARTS,
        writer='the terminal: Linux, drivers/tty/n_tty.c',
        is_sure=True,
    ),
    Pattern(
        cause='interrupted',
        order=Order.ENDED,
        pattern=r'srun: (?:interrupt \(|sending Ctrl-C)',
        example='srun: interrupt (one more within 1 sec to abort)',
        healthy=_SRUN_ALLOCATED,
        writer='Slurm, src/srun/signals.c',
        since='1.0',
        is_sure=True,
    ),
    Pattern(
        cause='interrupted',
        order=Order.ENDED,
        pattern=r'Received (?:1|2|15|Signals\.SIG\w+) death signal, shutting down',
        example=(
            'WARNING:torch.distributed.elastic.agent.server.api:Received 2 death '
            'signal, shutting down workers'
        ),
        healthy=_TORCHRUN_STARTS,
        writer='PyTorch, torch/distributed/elastic/agent/server/api.py',
        is_sure=True,
    ),
    Pattern(
        cause='interrupted',
        order=Order.ENDED,
        pattern='^Hangup$',
        example='Hangup',
        healthy=_BASH_DONE,
        writer='bash, jobs.c',
        is_sure=True,
    ),
    Pattern(
        cause='interrupted',
        order=Order.ENDED,
        pattern=r'line \d+:\s+\d+ Hangup\b',
        example='run.sh: line 28:  8156 Hangup                  python tools/train.py',
        healthy=_BASH_DONE,
        writer='bash, jobs.c',
        is_sure=True,
    ),
    Pattern(
        cause='interrupted',
        order=Order.ENDED,
        pattern=rf'^(?:zsh: |{_JOB}|\[\d+\][+-]?\s+(?:\d+ )?)[Hh]angup\b',
        example='[1]  + 4123 hangup     python tools/train.py',
        healthy=_ZSH_DONE,
        writer='zsh, Src/signames2.awk, and bash, jobs.c',
        is_sure=True,
    ),
    Pattern(
        cause='interrupted',
        order=Order.ENDED,
        pattern=r'\*\*\* (?:JOB|STEP) \S+ (?:ON \S+ )?CANCELLED AT \S+ \*\*\*',
        example=(
            'slurmstepd: error: *** JOB 55595933 ON gpu7 CANCELLED AT '
            '2025-01-10T15:27:25 ***'
        ),
        healthy=_SRUN_WAITS,
        writer='Slurm, src/slurmd/slurmstepd/req.c',
        since='15.08',
    ),
    Pattern(
        cause='interrupted',
        order=Order.ENDED,
        pattern=r'\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+ DUE to SIGNAL',
        example=(
            '[2026-09-21T10:00:00.123] error: *** JOB 7 ON node1 CANCELLED AT '
            '2026-09-21T10:00:00 DUE to SIGNAL Terminated ***'
        ),
        healthy=_SRUN_WAITS,
        writer='Slurm, src/slurmd/slurmstepd/req.c',
        since='25.05',
    ),
    Pattern(
        cause='interrupted',
        order=Order.ENDED,
        pattern=r'process rank \d+ with PID \S+ on node \S+ exited on signal 2 \(',
        example=(
            'mpirun noticed that process rank 0 with PID 5997 on node juan exited on '
            'signal 2 (Interrupt).'
        ),
        healthy=_MPIRUN_BOUND,
        writer='Open MPI, orte/tools/orterun/help-orterun.txt',
        since='1.3',
    ),
    Pattern(
        cause='interrupted',
        order=Order.ENDED,
        pattern=r'Sending process \d+ closing signal SIG(?:INT|HUP)',
        example=(
            'WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 33 '
            'closing signal SIGINT'
        ),
        healthy=_TORCHRUN_STARTS,
        writer='PyTorch, torch/distributed/elastic/multiprocessing/api.py',
    ),
    Pattern(
        cause='interrupted',
        order=Order.ENDED,
        pattern=r'(?:^|[:\]] )Detected KeyboardInterrupt, ',
        example='Detected KeyboardInterrupt, attempting graceful shutdown ...',
        healthy='`Trainer.fit` stopped: `max_epochs=2` reached.',
        writer='Lightning, src/lightning/pytorch/trainer/call.py',
        since='0.7',
    ),
    Pattern(
        cause='interrupted',
        order=Order.ENDED,
        pattern=(
            r'DataLoader worker \(pid(?:\(s\))? [\d, ]{1,400}\) is killed by signal: '
            '(?:Interrupt|Hangup)'
        ),
        example=(
            'RuntimeError: DataLoader worker (pid 3) is killed by signal: Interrupt.'
        ),
        healthy=_MANY_WORKERS,
        writer='PyTorch, torch/csrc/DataLoader.cpp',
    ),
    Pattern(
        cause='interrupted',
        order=Order.AFTER,
        pattern='^Terminated$',
        example='Terminated',
        healthy=_BASH_DONE,
        writer='bash, jobs.c',
    ),
    Pattern(
        cause='interrupted',
        order=Order.AFTER,
        pattern='Received SIGTERM(?:$|: 15)',
        example='[rank: 0] Received SIGTERM: 15',
        healthy='[rank: 0] Bypassing SIGTERM: 15',
        writer='Lightning, .../trainer/connectors/signal_connector.py',
        since='2.0',
    ),
    Pattern(
        cause='interrupted',
        order=Order.AFTER,
        pattern=rf'^(?:zsh: |{_JOB}|\[\d+\][+-]?\s+(?:\d+ )?)[Tt]erminated\b',
        example='[1]  + 4123 terminated  python tools/train.py',
        healthy=_ZSH_DONE,
        writer='zsh, Src/signames2.awk, and bash, jobs.c',
    ),
    Pattern(
        cause='interrupted',
        order=Order.AFTER,
        pattern=r'line \d+:\s+\d+ Terminated',
        example=(
            'run.sh: line 3:  4711 Terminated              python tools/train.py cfg.py'
        ),
        healthy=_BASH_DONE,
        writer='bash, jobs.c',
    ),
    Pattern(
        cause='interrupted',
        order=Order.AFTER,
        pattern=(
            r'(?:^fish: Job .{1,400} terminated by'
            r'|process rank \d+ with PID \S+ on node \S+ exited on) signal '
            r'(?:SIGTERM|15)\b'
        ),
        example=(
            "fish: Job 1, 'python tools/train.py' terminated by signal SIGTERM (Polite "
            'quit request)'
        ),
        healthy="fish: Job 1, 'python tools/train.py &' has ended",
        writer='fish, share/functions/fish_job_summary.fish',
        since='1.16',
    ),
    Pattern(
        cause='interrupted',
        order=Order.AFTER,
        pattern=f'(?:{_ENDED_WITH}|{_EXIT_CODE})143{_NO_MORE}',
        example='trainer-1 exited with code 143',
        healthy='trainer-1 exited with code 0',
        writer='Docker Compose, pkg/compose/printer.go',
        since='2.0',
    ),
    Pattern(
        cause='shm_full',
        order=Order.RESOURCE,
        pattern=(
            _SHARED_MEMORY + r'.{0,300}[:\]] No space left on device(?:$|[^ \w]| \()'
        ),
        example=(
            'RuntimeError: unable to allocate shared memory(shm) for file '
            '</torch_8125_1632_77>: No space left on device (28)'
        ),
        healthy=_SHMEM_NOTE,
        writer='PyTorch, aten/src/ATen/MapAllocator.cpp',
        is_sure=True,
        survives=64,
    ),
    Pattern(
        cause='shm_full',
        order=Order.RESOURCE,
        # in any language
        pattern=_SHARED_MEMORY + r'.{0,300}\(28\)',
        example=(
            'RuntimeError: unable to resize file </torch_8125_1632_77> to the right '
            'size: 设备上没有空间 (28)'
        ),
        healthy=_SHMEM_NOTE,
        writer='PyTorch, aten/src/ATen/MapAllocator.cpp',
        is_sure=True,
        survives=64,
    ),
    Pattern(
        cause='shm_full',
        order=Order.RESOURCE,
        pattern=r'[:\]] No space left on device: .{0,300}' + _SHARED_MEMORY,
        example=(
            "OSError: [Errno 28] No space left on device: '/dev/shm/coco_cache.npy'"
        ),
        healthy=(
            'WARNING services.py:1826 -- WARNING: The object store is using /tmp '
            'instead of /dev/shm because /dev/shm has only 67108864 bytes available.'
        ),
        writer='Python, OSError',
        is_sure=True,
        survives=64,
    ),
    Pattern(
        cause='open_files',
        order=Order.RESOURCE,
        pattern=r'Error: received \d+ items of ancdata',
        example='RuntimeError: received 0 items of ancdata',
        healthy=_OPEN_FILES_LIMIT,
        writer='Python, Lib/multiprocessing/reduction.py',
        is_sure=True,
        survives=64,
    ),
    Pattern(
        cause='open_files',
        order=Order.RESOURCE,
        pattern=r'[:\]] {1,2}Too many open files(?:$|[^ ]| \()',
        example=(
            'RuntimeError: unable to open shared memory object '
            '</torch_30997_2076642173> in read-write mode: Too many open files (24)'
        ),
        healthy=_OPEN_FILES_LIMIT,
        writer='PyTorch, aten/src/ATen/MapAllocator.cpp',
        is_sure=True,
        survives=64,
    ),
    Pattern(
        cause='open_files',
        order=Order.RESOURCE,
        # in any language
        pattern=r'Error: \[Errno 24\]',
        example=(
            'OSError: [Errno 24] 打开的文件过多: '
            "'/data/coco/train2017/000000000009.jpg'"
        ),
        healthy=_OPEN_FILES_LIMIT,
        writer='Python, OSError',
        is_sure=True,
        survives=64,
    ),
    Pattern(
        cause='oom_host',
        order=Order.RESOURCE,
        pattern=r'unable to mmap \d+ bytes .{0,300}Cannot allocate memory',
        example=(
            'RuntimeError: unable to mmap 4096 bytes from file </torch_8125_1632_77>: '
            'Cannot allocate memory (12)'
        ),
        healthy=NoNeighbour.RAISED,
        writer='PyTorch, aten/src/ATen/MapAllocator.cpp',
        survives=64,
    ),
    Pattern(
        cause='shm_full',
        order=Order.RESOURCE,
        pattern=r'(?i:unable to allocate shared memory ?\(shm\) for file)',
        example=(
            'RuntimeError: unable to allocate shared memory(shm) for file '
            '</torch_1140157_3143461634_13983>: Success (0)'
        ),
        healthy=_SHMEM_NOTE,
        writer='PyTorch, aten/src/ATen/MapAllocator.cpp',
        survives=64,
    ),
    Pattern(
        cause='shm_full',
        order=Order.RESOURCE,
        pattern=(
            r'unable to (?:write to|resize) file </?torch_[\w-]{1,60}>'
            r'(?:$|: [A-Z]| to the right size)'
        ),
        example='RuntimeError: unable to write to file </torch_18692_1954506624>',
        healthy=_SHMEM_NOTE,
        writer='PyTorch, aten/src/ATen/MapAllocator.cpp',
        survives=64,
    ),
    Pattern(
        cause='shm_full',
        order=Order.RESOURCE,
        pattern=r'Error while creating shared memory segment \S+ \(size \d',
        example=(
            'node08:27106:27302 [0] include/shm.h:48 NCCL WARN Error while creating '
            'shared memory segment nccl-shm-recv-b7948f (size 4460544)'
        ),
        healthy=(
            'node08:27106:27302 [0] NCCL INFO Channel 00 : 0[1b000] -> 1[1c000] via '
            'SHM/direct/direct'
        ),
        writer='NCCL, src/include/shm.h',
        since='2.4',
        survives=64,
    ),
    Pattern(
        cause='shm_full',
        order=Order.WORKER,
        pattern=(
            r'DataLoader worker \(pid(?:\(s\))? [\d, ]{1,400}\) is killed by signal: '
            'Bus error'
        ),
        example=(
            'RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error. '
            "It is possible that dataloader's workers are out of shared memory. Please "
            'try to raise your shared memory limit.'
        ),
        healthy=_MANY_WORKERS,
        writer='PyTorch, torch/csrc/DataLoader.cpp',
        since='2019',
    ),
    Pattern(
        cause='shm_full',
        order=Order.WORKER,
        pattern=r'Unexpected bus error encountered in worker\.',
        example=(
            'ERROR: Unexpected bus error encountered in worker. This might be caused '
            'by insufficient shared memory (shm).'
        ),
        healthy=_SHMEM_NOTE,
        writer='PyTorch, torch/csrc/DataLoader.cpp',
        since='1.5',
    ),
    Pattern(
        cause='open_files',
        order=Order.HINTED,
        pattern=(
            r'unable to open shared memory object .{0,200}read-write mode'
            r'(?!.{0,300}\d\))'
        ),
        example=(
            'RuntimeError: unable to open shared memory object '
            '</torch_30997_2076642173> in read-write mode'
        ),
        healthy=_OPEN_FILES_LIMIT,
        writer='PyTorch, aten/src/ATen/MapAllocator.cpp',
        since='2018',
        is_raised=True,
        survives=64,
    ),
    Pattern(
        cause='oom_gpu',
        order=Order.RESOURCE,
        pattern='(?:CUDA|HIP|XPU|NPU|MPS backend) out of memory',
        example=(
            'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. '
            'GPU 2 has a total capacity of 79.15 GiB of which 3.25 MiB is free.'
        ),
        healthy=(
            '2024/05/01 10:00:00 - mmengine - WARNING - Attempting to copy inputs of '
            '<function loss at 0x7f3c1c0d1ee0> to CPU due to CUDA OOM'
        ),
        writer='PyTorch, c10/cuda/CUDACachingAllocator.cpp',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='oom_gpu',
        order=Order.RESOURCE,
        pattern=r'(?:^|\.)OutOfMemoryError: (?!Task)',
        example=(
            'torch.OutOfMemoryError: Allocation on device 0 would exceed allowed '
            'memory. (out of memory)'
        ),
        healthy=NoNeighbour.RAISED,
        writer='PyTorch, c10/cuda/CUDAMallocAsyncAllocator.cpp',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='oom_gpu',
        order=Order.RESOURCE,
        pattern='(?i:CUDA (?:runtime )?error.{0,10}: out of memory)',
        example='RuntimeError: CUDA error: out of memory',
        healthy=NoNeighbour.RAISED,
        writer='PyTorch, c10/cuda/CUDAException.cpp',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='oom_gpu',
        order=Order.RESOURCE,
        pattern=r'(?:[:\]] |results in )CUDA_ERROR_OUT_OF_MEMORY',
        example=(
            'failed to allocate 2.20G (2362232064 bytes) from device: '
            'CUDA_ERROR_OUT_OF_MEMORY: out of memory'
        ),
        healthy=(
            'I tensorflow/core/common_runtime/gpu/gpu_device.cc:1613] Created device '
            '/job:localhost/replica:0/task:0/device:GPU:0 with 9656 MB memory'
        ),
        writer='TensorFlow, tensorflow/stream_executor/cuda/cuda_driver.cc',
    ),
    Pattern(
        cause='oom_gpu',
        order=Order.RESOURCE,
        pattern=r"Cuda failure(?: \d+)? 'out of memory'",
        example="NCCL WARN Cuda failure 2 'out of memory'",
        healthy='NCCL version 2.18.5+cuda12.1',
        writer='NCCL, src/include/checks.h',
        since='1.2',
    ),
    Pattern(
        cause='oom_gpu',
        order=Order.RESOURCE,
        pattern='CU(?:BLAS|DNN|SOLVER)_STATUS_ALLOC_FAILED',
        example=(
            'RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling '
            '`cublasCreate(handle)`'
        ),
        healthy=_CUBLAS_TWICE,
        writer='PyTorch, aten/src/ATen/cuda/Exceptions.h',
        is_raised=True,
    ),
    Pattern(
        cause='oom_gpu',
        order=Order.RESOURCE,
        pattern='Unable to find a valid cuDNN algorithm',
        example=(
            'RuntimeError: Unable to find a valid cuDNN algorithm to run convolution'
        ),
        healthy=_CUDNN_TWICE,
        writer='PyTorch, aten/src/ATen/native/cudnn/Conv_v7.cpp',
        is_raised=True,
    ),
    Pattern(
        cause='oom_gpu',
        order=Order.RESOURCE,
        pattern='unable to find an engine to execute this computation',
        example=(
            'RuntimeError: GET was unable to find an engine to execute this computation'
        ),
        healthy=_CUDNN_TWICE,
        writer='PyTorch, aten/src/ATen/native/cudnn/Conv_v8.cpp',
        is_raised=True,
    ),
    Pattern(
        cause='gpu_lost',
        order=Order.RESOURCE,
        pattern='uncorrectable ECC error',
        example='RuntimeError: CUDA error: uncorrectable ECC error encountered',
        healthy=(
            '| GPU  Name                 Persistence-M| Bus-Id        Disp.A | '
            'Volatile Uncorr. ECC |'
        ),
        writer='CUDA, cudaGetErrorString',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='gpu_lost',
        order=Order.RESOURCE,
        pattern='over nvlink or a hardware error',
        example=(
            'RuntimeError: CUDA error: Invalid access of peer GPU memory over nvlink '
            'or a hardware error'
        ),
        healthy=(
            'gpu7:27106:27302 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via '
            'P2P/CUMEM/read'
        ),
        writer='CUDA, cudaGetErrorString',
        is_raised=True,
    ),
    Pattern(
        cause='shm_full',
        order=Order.RESOURCE,
        pattern=r'\[Errno 28\] No space left on device',
        example=(
            '  File "/usr/lib/python3.8/multiprocessing/synchronize.py", line 57, in '
            '__init__\n'
            'OSError: [Errno 28] No space left on device'
        ),
        healthy=_SHMEM_NOTE,
        writer='Python, Lib/multiprocessing/synchronize.py',
        needs='shm',
    ),
    Pattern(
        cause='disk_full',
        order=Order.RESOURCE,
        pattern=r'[:\]] Disk quota exceeded(?:$|[^ ]| \()',
        example="cp: error writing 'epoch_3.pth': Disk quota exceeded",
        healthy='Disk quotas for user bob (uid 1000): none',
        writer='any program, by the strerror of glibc',
        is_sure=True,
    ),
    Pattern(
        cause='disk_full',
        order=Order.RESOURCE,
        # in any language
        pattern=r'Error: \[Errno 122\]',
        example='OSError: [Errno 122] 超出磁盘限额',
        healthy='Disk quotas for user bob (uid 1000): none',
        writer='Python, OSError',
        is_sure=True,
    ),
    Pattern(
        cause='disk_full',
        order=Order.RESOURCE,
        pattern=r'(?:^|: )database or disk is full(?:$|\.)',
        example='sqlite3.OperationalError: database or disk is full',
        healthy=NoNeighbour.RAISED,
        writer='SQLite, src/main.c',
        is_sure=True,
    ),
    Pattern(
        cause='disk_full',
        order=Order.RESOURCE,
        pattern=(r'(?i:(?:: |\[Errno 28\] )no space left on device(?:$|[^ \w]| \())'),
        example='OSError: [Errno 28] No space left on device',
        healthy='/dev/sda1       1.8T  1.7T   20G  99% /scratch',
        writer='Python, OSError',
        is_sure=True,
    ),
    Pattern(
        cause='disk_full',
        order=Order.HINTED,
        pattern='PytorchStreamWriter failed writing',
        example=(
            'RuntimeError: [enforce fail at inline_container.cc:471] . '
            'PytorchStreamWriter failed writing file data/228: file write failed'
        ),
        healthy=NoNeighbour.RAISED,
        writer='PyTorch, caffe2/serialize/inline_container.cc',
        is_raised=True,
    ),
    Pattern(
        cause='disk_full',
        order=Order.HINTED,
        pattern=r'inline_container\.cc.{0,300}unexpected pos',
        example=(
            'RuntimeError: [enforce fail at inline_container.cc:337] . unexpected pos '
            '190007680 vs 190007572'
        ),
        healthy=NoNeighbour.RAISED,
        writer='PyTorch, caffe2/serialize/inline_container.cc',
        is_raised=True,
    ),
    Pattern(
        cause='disk_full',
        order=Order.HINTED,
        pattern='No usable temporary directory found',
        example=(
            'FileNotFoundError: [Errno 2] No usable temporary directory found in '
            "['/tmp', '/var/tmp', '/usr/tmp', '/work']"
        ),
        healthy=NoNeighbour.RAISED,
        writer='Python, Lib/tempfile.py',
        is_raised=True,
    ),
    Pattern(
        cause='oom_host',
        order=Order.RESOURCE,
        pattern="DefaultCPUAllocator: (?:can't allocate|not enough) memory",
        example=(
            'RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. '
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 5308416 "
            'bytes. Error code 12 (Cannot allocate memory)'
        ),
        healthy=NoNeighbour.RAISED,
        writer='PyTorch, c10/core/impl/alloc_cpu.cpp',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='oom_host',
        order=Order.RESOURCE,
        pattern=r'\[Errno 12\]',
        example='OSError: [Errno 12] Cannot allocate memory',
        healthy=NoNeighbour.RAISED,
        writer='Python, OSError',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='oom_host',
        order=Order.RESOURCE,
        pattern='OSError: .{0,300}Cannot allocate memory',
        example=(
            'OSError: /env/lib/libcudart.so.11.0: failed to map segment from shared '
            'object: Cannot allocate memory'
        ),
        healthy=NoNeighbour.RAISED,
        writer='glibc, elf/dl-load.c',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='oom_host',
        order=Order.RESOURCE,
        pattern=r'(?:^|\.)_?(?:Array)?MemoryError\b',
        example=(
            'numpy.core._exceptions._ArrayMemoryError: Unable to allocate 2.20 GiB for '
            'an array with shape (8, 4000, 6000, 3) and data type float32'
        ),
        healthy=NoNeighbour.RAISED,
        writer='NumPy, numpy/core/_exceptions.py',
        is_raised=True,
    ),
    Pattern(
        cause='oom_host',
        order=Order.RESOURCE,
        pattern=r'\(-4:Insufficient memory\)',
        example=(
            'cv2.error: OpenCV(4.5.5) /io/opencv/modules/core/src/alloc.cpp:73: error: '
            '(-4:Insufficient memory) Failed to allocate 1244160000 bytes in function '
            "'OutOfMemoryError'"
        ),
        healthy=(
            '[ WARN:0@12.345] global loadsave.cpp:248 findDecoder '
            "imread_('/data/1.jpg'): can't open/read file: check file path/integrity"
        ),
        writer='OpenCV, modules/core/src/alloc.cpp',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='oom_host',
        order=Order.RESOURCE,
        pattern=r'\[WinError 1455\]',
        example=(
            'OSError: [WinError 1455] The paging file is too small for this operation '
            r'to complete. Error loading "C:\env\Lib\site-packages\torch\lib\c10.dll"'
        ),
        healthy=NoNeighbour.RAISED,
        writer='Python, OSError, by the FormatMessage of Windows',
        is_sure=True,
    ),
    Pattern(
        cause='oom_host',
        order=Order.RESOURCE,
        pattern='error code: <1455>',
        example=(
            "RuntimeError: Couldn't open shared file mapping: <torch_22884_2321048452>,"
            ' error code: <1455>'
        ),
        healthy=NoNeighbour.RAISED,
        writer='PyTorch, aten/src/ATen/MapAllocator.cpp',
        is_sure=True,
    ),
    Pattern(
        cause='oom_host',
        order=Order.RESOURCE,
        pattern='[Tt]he paging file is too small for this operation',
        example=(
            'ImportError: DLL load failed while importing _C: The paging file is too '
            'small for this operation to complete.'
        ),
        healthy=NoNeighbour.RAISED,
        writer='Python, ImportError, by the FormatMessage of Windows',
        is_sure=True,
    ),
    Pattern(
        cause='oom_host',
        order=Order.RESOURCE,
        pattern='(?:^|: )fork: Cannot allocate memory',
        example='bash: fork: Cannot allocate memory',
        healthy=NoNeighbour.SILENT,
        writer='bash, jobs.c',
        is_sure=True,
    ),
    Pattern(
        cause='oom_host',
        order=Order.RESOURCE,
        pattern="(?:'|: {1,2})std::bad_alloc",
        example="terminate called after throwing an instance of 'std::bad_alloc'",
        healthy=NoNeighbour.SILENT,
        writer='GCC, libstdc++-v3/libsupc++/vterminate.cc',
    ),
    Pattern(
        cause='unused_parameters',
        order=Order.RESOURCE,
        pattern='Expected to have finished reduction',
        example=(
            'RuntimeError: Expected to have finished reduction in the prior iteration '
            'before starting a new one. This error indicates that your module has '
            'parameters that were not used in producing loss.'
        ),
        healthy=(
            '[W reducer.cpp:1346] Warning: find_unused_parameters=True was specified '
            'in DDP constructor, but did not find any unused parameters in the forward '
            'pass.'
        ),
        writer='PyTorch, torch/csrc/distributed/c10d/reducer.cpp',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='device_assert',
        order=Order.RESOURCE,
        pattern='device-side assert triggered',
        example='RuntimeError: CUDA error: device-side assert triggered',
        healthy='Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.',
        writer='CUDA, cudaGetErrorString',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='port_in_use',
        order=Order.RESOURCE,
        pattern=r'(?i:[-:\]] address already in use)(?:$|[^ \w])',
        example=(
            'RuntimeError: The server socket has failed to listen on any local network '
            'address. The server socket has failed to bind to [::]:29500 (errno: 98 - '
            'Address already in use).'
        ),
        healthy='ERROR: TensorBoard could not bind to port 6006, it was already in use',
        writer='PyTorch, torch/csrc/distributed/c10d/socket.cpp',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='resume_refused',
        order=Order.RESOURCE,
        pattern='Weights only load failed',
        example=(
            '_pickle.UnpicklingError: Weights only load failed. This file can still be '
            'loaded, to do so you have two options'
        ),
        healthy=_WEIGHTS_ONLY_WARNING,
        writer='PyTorch, torch/serialization.py',
        since='1.13',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='resume_refused',
        order=Order.RESOURCE,
        pattern='WeightsUnpickler error: ',
        example=(
            '\tWeightsUnpickler error: Unsupported global: GLOBAL '
            'mmengine.logging.history_buffer.HistoryBuffer was not an allowed global '
            'by default.'
        ),
        healthy=_WEIGHTS_ONLY_WARNING,
        writer='PyTorch, torch/serialization.py',
        is_sure=True,
    ),
    Pattern(
        cause='nan_loss',
        order=Order.RESOURCE,
        pattern=(
            '(?i:loss bec[ao]me infinite or nan(?:!| at )'
            '|FloatingPointError: .{0,300}(?:nan|infin|loss scale))'
        ),
        example='2024/05/01 10:00:00 - mmengine - INFO - loss become infinite or NaN!',
        healthy=_APEX_OVERFLOW,
        writer='MMDetection, mmdet/engine/hooks/checkloss_hook.py',
        is_sure=True,
    ),
    Pattern(
        cause='nan_loss',
        order=Order.RESOURCE,
        pattern=(
            r'(?i:\bloss is (?:nan|inf),? ?(?:stopping|exit\w*|abort\w*|terminat\w*)'
            r'(?: (?:the )?(?:training|run)\b|[.!]{0,3}$))'
        ),
        example='Loss is nan, stopping training',
        healthy=_APEX_OVERFLOW,
        writer='DETR, engine.py, and torchvision, references/detection/engine.py',
        since='2020',
        is_sure=True,
    ),
    Pattern(
        cause='nan_loss',
        order=Order.RESOURCE,
        pattern='loss scale already at minimum',
        example=(
            'Exception: Current loss scale already at minimum - cannot decrease scale '
            'anymore. Exiting run.'
        ),
        healthy=(
            '[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, '
            'reducing to 32768.0'
        ),
        writer='DeepSpeed, deepspeed/runtime/fp16/loss_scaler.py',
        since='0.6',
        is_raised=True,
    ),
    Pattern(
        cause='nan_loss',
        order=Order.RESOURCE,
        pattern='matrix contains invalid numer',
        example='ValueError: matrix contains invalid numeric entries',
        healthy=NoNeighbour.RAISED,
        writer='SciPy, scipy/optimize/_lsap.c',
        is_raised=True,
    ),
    Pattern(
        cause='nan_loss',
        order=Order.RESOURCE,
        pattern='returned nan values',
        example=(
            "RuntimeError: Function 'MulBackward0' returned nan values in its 0th "
            'output.'
        ),
        healthy=(
            'UserWarning: Anomaly Detection has been enabled. This mode will increase '
            'the runtime and should only be enabled for debugging.'
        ),
        writer='PyTorch, torch/csrc/autograd/engine.cpp',
        is_raised=True,
    ),
    Pattern(
        cause='config_error',
        order=Order.RESOURCE,
        pattern=r'is not in the .{0,60}\bregistry',
        example=(
            "KeyError: 'RTMDett is not in the mmdet::model registry. Please check "
            'whether the value of `RTMDett` is correct or it was registered as '
            "expected.'"
        ),
        healthy=(
            'Failed to search registry with scope "mmdet" in the "optim_wrapper" '
            'registry tree. As a workaround, the current "optim_wrapper" registry in '
            '"mmengine" is used to build instance.'
        ),
        writer='MMEngine, mmengine/registry/build_functions.py',
        since='0.1',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='config_error',
        order=Order.RESOURCE,
        pattern="'ConfigDict' object has no attribute",
        example=(
            "AttributeError: 'ConfigDict' object has no attribute 'train_dataloder'"
        ),
        healthy=NoNeighbour.RAISED,
        writer='MMEngine, mmengine/config/config.py',
        since='0.1',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='config_error',
        order=Order.RESOURCE,
        pattern='Duplicate key is not allowed among bases',
        example=(
            'KeyError: "Duplicate key is not allowed among bases. Duplicate keys: '
            "{'model'}\""
        ),
        healthy=NoNeighbour.RAISED,
        writer='MMEngine, mmengine/config/config.py',
        since='0.1',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='config_error',
        order=Order.RESOURCE,
        pattern='Failed to import custom modules',
        example=(
            "ImportError: Failed to import custom modules from {'imports': "
            "['projects.mine'], 'allow_failed_imports': False}, the current sys.path "
            'is: '
        ),
        healthy='UserWarning: projects.mine failed to import and is ignored.',
        writer='MMEngine, mmengine/config/config.py',
        since='0.7',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='config_error',
        order=Order.RESOURCE,
        pattern='Only py/yml/yaml/json type are supported',
        example='OSError: Only py/yml/yaml/json type are supported now!',
        healthy=NoNeighbour.RAISED,
        writer='MMEngine, mmengine/config/config.py',
        since='0.1',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='config_error',
        order=Order.RESOURCE,
        pattern=r'^omegaconf\.',
        example='omegaconf.errors.ConfigAttributeError: Missing key lr',
        healthy=NoNeighbour.RAISED,
        writer='OmegaConf, omegaconf/errors.py',
        since='2.0',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='config_error',
        order=Order.RESOURCE,
        pattern=r'^hydra\.',
        example=(
            'hydra.errors.MissingConfigException: Cannot find primary config '
            "'confg'. Check that it's in your config search path."
        ),
        healthy=_HYDRA_WARNS,
        writer='Hydra, hydra/errors.py',
        since='0.11',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='config_error',
        order=Order.RESOURCE,
        pattern=(
            '(?:num_workers|prefetch_factor|persistent_workers|timeout) option '
            '(?:could|needs|should)'
        ),
        example=(
            'ValueError: prefetch_factor option could only be specified in '
            'multiprocessing.let num_workers > 0 to enable multiprocessing, otherwise '
            'set prefetch_factor to None.'
        ),
        healthy=_MANY_WORKERS,
        writer='PyTorch, torch/utils/data/dataloader.py',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='config_error',
        order=Order.RESOURCE,
        pattern='does not matches the length of',
        example=(
            'AssertionError: The `num_classes` (80) in Shared2FCBBoxHead of FasterRCNN '
            'does not matches the length of `classes` 3) in CocoDataset'
        ),
        healthy=(
            'Please set `classes` in the CocoDataset `metainfo` andcheck if it is '
            'consistent with the `num_classes` of head'
        ),
        writer='MMDetection, mmdet/engine/hooks/num_class_check_hook.py',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='config_error',
        order=Order.RESOURCE,
        pattern='(?:not a valid|Non-existent) config key',
        example="KeyError: 'Non-existent config key: SOLVER.BASE_LRR'",
        healthy=NoNeighbour.RAISED,
        writer='YACS, yacs/config.py',
        since='0.1',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='config_error',
        order=Order.HINTED,
        pattern='Class values must be smaller than num_classes',
        example='RuntimeError: Class values must be smaller than num_classes.',
        healthy=NoNeighbour.RAISED,
        writer='PyTorch, aten/src/ATen/native/Onehot.cpp',
        is_raised=True,
    ),
    Pattern(
        cause='config_error',
        order=Order.HINTED,
        pattern=r'class `\w+` in \S+: need at least one array to concatenate$',
        example=(
            'ValueError: class `EpochBasedTrainLoop` in mmengine/runner/loops.py: '
            'class `CocoDataset` in mmdet/datasets/coco.py: need at least one array '
            'to concatenate'
        ),
        healthy=NoNeighbour.RAISED,
        writer='MMEngine, mmengine/registry/build_functions.py, and NumPy',
        is_raised=True,
    ),
    Pattern(
        cause='config_error',
        order=Order.HINTED,
        pattern='num_samples should be a positive integer value, but got num_samples=0',
        example=(
            'ValueError: num_samples should be a positive integer value, but got '
            'num_samples=0'
        ),
        healthy=NoNeighbour.RAISED,
        writer='PyTorch, torch/utils/data/sampler.py',
        is_raised=True,
    ),
    Pattern(
        cause='config_error',
        order=Order.RESOURCE,
        pattern=r'^\S+(?:\.py|torchrun|train): error:\s',
        example='train.py: error: unrecognized arguments: --wrok-dir x',
        healthy='usage: train.py [-h] [--work-dir WORK_DIR] [--amp] config',
        writer='Python, Lib/argparse.py',
        is_sure=True,
    ),
    Pattern(
        cause='config_error',
        order=Order.RESOURCE,
        pattern="^Could not override '",
        example="Could not override 'model.lrr'.",
        healthy=_HYDRA_WARNS,
        writer='Hydra, hydra/_internal/config_loader_impl.py',
        since='1.0',
        is_sure=True,
    ),
    Pattern(
        cause='config_error',
        order=Order.RESOURCE,
        pattern='unexpected keyword arg',
        example=(
            '  File "/env/mmengine/registry/build_functions.py", line 121, in '
            'build_from_cfg\n'
            'TypeError: class `FasterRCNN` in mmdet/models/detectors/faster_rcnn.py: '
            "__init__() got an unexpected keyword argument 'backbonee'"
        ),
        healthy='unexpected key in source state_dict: fc.weight, fc.bias',
        writer='Python and MMEngine, mmengine/registry/build_functions.py',
        is_sure=True,
        is_raised=True,
        needs='config',
    ),
    Pattern(
        cause='config_error',
        order=Order.HINTED,
        pattern=r'(?:Syntax|Indentation|Name|FileNotFound|NotADirectory)Error:\s',
        example=(
            '  File "/env/mmengine/config/config.py", line 496, in fromfile\n'
            "SyntaxError: '(' was never closed"
        ),
        healthy=NoNeighbour.RAISED,
        writer='Python',
        is_raised=True,
        needs='config',
    ),
    Pattern(
        cause='no_gpu',
        order=Order.RESOURCE,
        pattern='^RuntimeError: Found no NVIDIA driver on your system',
        example=(
            'RuntimeError: Found no NVIDIA driver on your system. Please check that '
            'you have an NVIDIA GPU and installed a driver from '
            'http://www.nvidia.com/Download/index.aspx'
        ),
        healthy=(
            'UserWarning: CUDA initialization: Found no NVIDIA driver on your system. '
            'Please check that you have an NVIDIA GPU and installed a driver from '
            'http://www.nvidia.com/Download/index.aspx'
        ),
        writer='PyTorch, c10/cuda/CUDAFunctions.cpp',
        is_raised=True,
    ),
    Pattern(
        cause='no_gpu',
        order=Order.RESOURCE,
        pattern='^RuntimeError: No CUDA GPUs are available',
        example='RuntimeError: No CUDA GPUs are available',
        healthy='    CUDA available: False',
        writer='PyTorch, c10/cuda/CUDAFunctions.cpp',
        is_raised=True,
    ),
    Pattern(
        cause='no_gpu',
        order=Order.RESOURCE,
        pattern='^AssertionError: Torch not compiled with CUDA enabled',
        example='AssertionError: Torch not compiled with CUDA enabled',
        healthy='    CUDA available: False',
        writer='PyTorch, torch/cuda/__init__.py',
        is_raised=True,
    ),
    Pattern(
        cause='package_missing',
        order=Order.HINTED,
        pattern='^ModuleNotFoundError: No module named ',
        example="ModuleNotFoundError: No module named 'mmdet'",
        healthy="UserWarning: No module named 'nvtx': ranges are not marked",
        writer='Python',
        since='3.6',
        is_raised=True,
    ),
    Pattern(
        cause='interrupted',
        order=Order.HINTED,
        pattern=r'\[Errno 5\] Input/output error$',
        example=(
            '  File "/usr/lib/python3.10/logging/__init__.py", line 1103, in emit\n'
            'OSError: [Errno 5] Input/output error'
        ),
        healthy=NoNeighbour.RAISED,
        writer='Python, OSError',
        is_raised=True,
        needs='terminal',
    ),
    Pattern(
        cause='storage_stalled',
        order=Order.WORKER,
        pattern='Stale (?:NFS )?file handle',
        example="OSError: [Errno 116] Stale file handle: '/nfs/coco/train/1.jpg'",
        healthy=NoNeighbour.RAISED,
        writer='Python, OSError',
        is_raised=True,
    ),
    Pattern(
        cause='storage_stalled',
        order=Order.WORKER,
        pattern=r'\[Errno 1(?:07|08|12|16)\]',
        example=(
            'OSError: [Errno 108] Cannot send after transport endpoint shutdown: '
            "'/scratch/train/a.jpg'"
        ),
        healthy=NoNeighbour.RAISED,
        writer='Python, OSError',
        is_raised=True,
    ),
    Pattern(
        cause='storage_stalled',
        order=Order.WORKER,
        pattern='Transport endpoint is not connected',
        example=(
            "OSError: Unable to open file (unable to open file: name = '/mnt/gcs/"
            "coco.h5', errno = 107, error message = 'Transport endpoint is not "
            "connected', flags = 0, o_flags = 0)"
        ),
        healthy=NoNeighbour.RAISED,
        writer='HDF5, src/H5FDsec2.c',
        is_raised=True,
    ),
    Pattern(
        cause='storage_stalled',
        order=Order.WORKER,
        pattern=r'\[Errno 5\]',
        example="OSError: [Errno 5] Input/output error: '/data/1.jpg'",
        healthy=NoNeighbour.RAISED,
        writer='Python, OSError',
        is_raised=True,
    ),
    Pattern(
        cause='storage_stalled',
        order=Order.WORKER,
        pattern=r'\berrno = 5\b',
        example=(
            '  File "h5py/h5f.pyx", line 88, in h5py.h5f.open\n'
            'OSError: Unable to open file (file read failed: time = Fri Oct 15 '
            '11:49:15 2021\n'
            ", filename = '/data/coco.h5', file descriptor = 23, errno = 5, error "
            "message = 'Input/output error', buf = 0x7fffbbfb0078, total read size = 8"
        ),
        healthy=NoNeighbour.RAISED,
        writer='HDF5, src/H5FDsec2.c',
        since='2021',
        is_raised=True,
    ),
    Pattern(
        cause='oom_host',
        order=Order.WORKER,
        pattern=(
            r'DataLoader worker \(pid(?:\(s\))? [\d, ]{1,400}\) is killed by signal: '
            'Killed'
        ),
        example=(
            'RuntimeError: DataLoader worker (pid 4123) is killed by signal: Killed.'
        ),
        healthy=_MANY_WORKERS,
        writer='PyTorch, torch/csrc/DataLoader.cpp',
        victim='worker',
    ),
    Pattern(
        cause='worker_killed',
        order=Order.WORKER,
        pattern=(
            r'DataLoader worker \(pid(?:\(s\))? [\d, ]{1,400}\) is killed by signal: '
            '(?:Segm|Abort|Illegal|Floating|Trace)'
        ),
        example=(
            'RuntimeError: DataLoader worker (pid 1657) is killed by signal: '
            'Segmentation fault.'
        ),
        healthy=_MANY_WORKERS,
        writer='PyTorch, torch/csrc/DataLoader.cpp',
        is_sure=True,
    ),
    Pattern(
        cause='worker_killed',
        order=Order.WORKER,
        pattern=(
            'Unexpected (?:segmentation fault|floating.point exception) encountered '
            r'in worker\.'
        ),
        example='ERROR: Unexpected segmentation fault encountered in worker.',
        healthy=_MANY_WORKERS,
        writer='PyTorch, torch/csrc/DataLoader.cpp',
        is_sure=True,
    ),
    Pattern(
        cause='unknown',
        order=Order.LOST,
        pattern=(
            r'DataLoader worker \(pid(?:\(s\))? [\d, ]{1,400}\) is killed by signal: '
            'Terminated'
        ),
        example=(
            'RuntimeError: DataLoader worker (pid 88) is killed by signal: Terminated.'
        ),
        healthy=_MANY_WORKERS,
        writer='PyTorch, torch/csrc/DataLoader.cpp',
        victim='terminated',
    ),
    Pattern(
        cause='worker_killed',
        order=Order.LOST,
        pattern=(
            r'DataLoader worker \(pid(?:\(s\))? [\d, ]{1,400}\) '
            '(?:is killed by signal: |exited unexpectedly)'
        ),
        example='RuntimeError: DataLoader worker (pid(s) 4743) exited unexpectedly',
        healthy=_MANY_WORKERS,
        writer='PyTorch, torch/utils/data/dataloader.py',
    ),
    Pattern(
        cause='worker_stuck',
        order=Order.WORKER,
        pattern=r'DataLoader timed out after [\d.]+ sec',
        example='RuntimeError: DataLoader timed out after 60 seconds',
        healthy='    timeout=60,',
        writer='PyTorch, torch/utils/data/dataloader.py',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='sample_raised',
        order=Order.WRAPPED,
        pattern=r'Caught (?!KeyboardInterrupt)\w+ in DataLoader worker process \d',
        example=(
            'FileNotFoundError: Caught FileNotFoundError in DataLoader worker process '
            '2.'
        ),
        healthy='Corrupt JPEG data: premature end of data segment',
        writer='PyTorch, torch/_utils.py',
        is_sure=True,
    ),
    Pattern(
        cause='worker_killed',
        order=Order.AFTER,
        pattern=r'^(?:Connection(?:Reset|Refused)|EOF|BrokenPipe)Error(?::|$)',
        example=(
            '  File "/env/torch/utils/data/_utils/pin_memory.py", line 49, in '
            '_pin_memory_loop\n'
            'ConnectionResetError: [Errno 104] Connection reset by peer'
        ),
        healthy='wandb: Network error (ConnectionError), entering retry loop.',
        writer='Python, OSError',
        needs='loader',
    ),
    Pattern(
        cause='unknown',
        order=Order.WRAPPED,
        pattern=r'^[\w.]*Error(?::|$)',
        example=(
            '  File "C:\\env\\lib\\multiprocessing\\spawn.py", line 134, in '
            '_check_not_importing_main\n'
            'RuntimeError:'
        ),
        healthy=NoNeighbour.RAISED,
        writer='Python, Lib/multiprocessing/spawn.py',
        is_raised=True,
        needs='spawn',
    ),
    Pattern(
        cause='unknown',
        order=Order.WRAPPED,
        pattern=r'^[\w.]*Exception(?::|$)',
        example=(
            '  File "C:\\env\\lib\\multiprocessing\\spawn.py", line 125, in _main\n'
            'Exception: no images in D:\\data\\coco'
        ),
        healthy=NoNeighbour.RAISED,
        is_raised=True,
        needs='spawn',
    ),
    Pattern(
        cause='pin_thread_lost',
        order=Order.AFTER,
        pattern='Pin memory thread exited unexpectedly',
        example='RuntimeError: Pin memory thread exited unexpectedly',
        healthy='    pin_memory=True,',
        writer='PyTorch, torch/utils/data/dataloader.py',
        since='1.7',
        is_raised=True,
    ),
    Pattern(
        cause='oom_host',
        order=Order.KILLED,
        pattern=r'(?:^|[\]\)]\s?|\ds)Killed(?:: 9)?$',
        example='Killed',
        healthy=_BASH_DONE,
        writer='bash, jobs.c',
        victim='process',
    ),
    Pattern(
        cause='oom_host',
        order=Order.KILLED,
        pattern='^已杀死$',
        example='已杀死',
        healthy=_BASH_DONE,
        writer='bash, jobs.c, by the strsignal of glibc, po/zh_CN.po',
        victim='process',
    ),
    Pattern(
        cause='oom_host',
        order=Order.KILLED,
        pattern=r'^zsh: killed\b',
        example='zsh: killed     python tools/train.py',
        healthy=_ZSH_DONE,
        writer='zsh, Src/signames2.awk',
        since='3.1',
        victim='process',
    ),
    Pattern(
        cause='oom_host',
        order=Order.KILLED,
        pattern=rf'^{_JOB}killed\b',
        example='[1]    4123 killed     python tools/train.py',
        healthy=_ZSH_DONE,
        writer='zsh, Src/signames2.awk',
        since='3.1',
        victim='process',
    ),
    Pattern(
        cause='oom_host',
        order=Order.KILLED,
        pattern=r'line \d+:\s+\d+ Killed\b',
        example=(
            'run.sh: line 28:  8156 Killed                  python tools/train.py a.py'
        ),
        healthy=_BASH_DONE,
        writer='bash, jobs.c',
        victim='process',
    ),
    Pattern(
        cause='oom_host',
        order=Order.KILLED,
        pattern=r'^\[\d+\]\+?\s+\d* ?Killed\b',
        example='[1]+  Killed                  python tools/train.py',
        healthy=_BASH_DONE,
        writer='bash, jobs.c',
        victim='process',
    ),
    Pattern(
        cause='oom_host',
        order=Order.KILLED,
        pattern=(f'(?:{_ENDED_WITH}|{_EXIT_CODE})137{_NO_MORE}'),
        example='trainer-1 exited with code 137',
        healthy='trainer-1 exited with code 0',
        writer='Docker Compose, pkg/compose/printer.go',
        since='2.0',
        victim='process',
    ),
    Pattern(
        cause='oom_host',
        order=Order.KILLED,
        pattern=(
            r'(?:^fish: Job .{1,400} |Command |[Pp]rocess \d+ )terminated by signal '
            r'(?:SIGKILL|9)\b'
        ),
        example=(
            "fish: Job 1, 'python train.py' terminated by signal SIGKILL (Forced quit)"
        ),
        healthy="fish: Job 1, 'python tools/train.py &' has ended",
        writer='fish, share/functions/fish_job_summary.fish',
        since='1.16',
        victim='process',
    ),
    Pattern(
        cause='oom_host',
        order=Order.KILLED,
        pattern='code=killed, status=9/KILL',
        example='train.service: Main process exited, code=killed, status=9/KILL',
        healthy='train.service: Deactivated successfully.',
        writer='systemd, src/core/unit.c',
        victim='process',
    ),
    Pattern(
        cause='oom_host',
        order=Order.KILLED,
        pattern=r'failed \(exitcode: -9\) (?:local_rank: \d+ )?\(pid: \d',
        example=(
            'ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) '
            'local_rank: 3 (pid: 812917) of binary: /env/bin/python'
        ),
        healthy=_TORCHRUN_ENDED,
        writer='PyTorch, torch/distributed/elastic/multiprocessing/api.py',
        victim='rank',
    ),
    Pattern(
        cause='oom_host',
        order=Order.KILLED,
        pattern=r'process rank \d+ with PID \S+ on node \S+ exited on signal 9 \(',
        example=(
            'mpirun noticed that process rank 3 with PID 11920 on node gpu7 exited on '
            'signal 9 (Killed).'
        ),
        healthy=_MPIRUN_BOUND,
        writer='Open MPI, orte/tools/orterun/help-orterun.txt',
        since='1.3',
        victim='rank',
    ),
    Pattern(
        cause='oom_host',
        order=Order.KILLED,
        pattern=r'KILLED BY SIGNAL: 9 \(',
        example='=   KILLED BY SIGNAL: 9 (Killed)',
        healthy=_INTEL_MPI_STARTS,
        writer='Intel MPI, mpiexec.hydra',
        victim='rank',
    ),
    Pattern(
        cause='oom_host',
        order=Order.KILLED,
        pattern='died with <Signals.SIGKILL',
        example=(
            "subprocess.CalledProcessError: Command '['/opt/conda/bin/python', '-u', "
            "'./tools/train.py']' died with <Signals.SIGKILL: 9>."
        ),
        healthy=NoNeighbour.RAISED,
        writer='Python, Lib/subprocess.py',
        victim='rank',
    ),
    Pattern(
        cause='oom_host',
        order=Order.KILLED,
        pattern=r'\] exits with return code = -9\b',
        example=(
            '[2023-09-10 11:45:59,870] [ERROR] [launch.py:434:sigkill_handler] '
            "['/usr/bin/python3', '-u', 'main.py'] exits with return code = -9"
        ),
        healthy=_DEEPSPEED_ENDED,
        writer='DeepSpeed, deepspeed/launcher/launch.py',
        since='0.5',
        victim='rank',
    ),
    Pattern(
        cause='oom_host',
        order=Order.KILLED,
        pattern='terminated with signal SIGKILL',
        example=(
            'torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated '
            'with signal SIGKILL'
        ),
        healthy=NoNeighbour.RAISED,
        writer='PyTorch, torch/multiprocessing/spawn.py',
        victim='rank',
    ),
    Pattern(
        cause='oom_host',
        order=Order.KILLED_TOO,
        pattern=r'srun: error: \S+: tasks? [\d,-]+: Killed',
        example='srun: error: gpu1: task 0: Killed',
        healthy='srun: gpu1: task 0: Completed',
        writer='Slurm, src/srun/launch.c',
        victim='rank',
    ),
    Pattern(
        cause='oom_host',
        order=Order.KILLED_TOO,
        pattern=r'exitcode\s+: -9\b',
        example=(
            'Root Cause (first observed failure):\n[0]:\n  exitcode  : -9 (pid: 2630)'
        ),
        healthy=_TORCHRUN_ENDED,
        writer='PyTorch, torch/distributed/elastic/multiprocessing/errors/__init__.py',
        victim='rank',
        needs='root',
    ),
    Pattern(
        cause='oom_host',
        order=Order.KILLED_TOO,
        pattern=r'Signal 9 \(SIGKILL\) received',
        example=(
            'Root Cause (first observed failure):\n'
            '[0]:\n'
            '  traceback : Signal 9 (SIGKILL) received by PID 2630'
        ),
        healthy=_TORCHRUN_ENDED,
        writer='PyTorch, torch/distributed/elastic/multiprocessing/errors/__init__.py',
        victim='rank',
        needs='root',
    ),
    Pattern(
        cause='rank_waits',
        order=Order.PEERS,
        pattern=r'(?:^|[:\]] )Watchdog caught collective operation timeout(?:$|: Work)',
        example=(
            '[E ProcessGroupNCCL.cpp:458] [Rank 0] Watchdog caught collective '
            'operation timeout: WorkNCCL(SeqNum=96120, OpType=ALLREDUCE, '
            'Timeout(ms)=1800000) ran for 1802212 milliseconds before timing out.'
        ),
        healthy=_WATCHDOG_STARTS,
        writer='PyTorch, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp',
        is_sure=True,
    ),
    Pattern(
        cause='rank_waits',
        order=Order.PEERS,
        pattern=r'ran for \d+ milliseconds before timing out',
        example=(
            'RuntimeError: [Rank 0] Caught collective operation timeout: '
            'WorkNCCL(OpType=ALLREDUCE, TensorShape=[1], Timeout(ms)=10000) ran for '
            '10003 milliseconds before timing out.'
        ),
        healthy='TIMEOUT(ms): 1800000',
        writer='PyTorch, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp',
        is_sure=True,
    ),
    Pattern(
        cause='rank_waits',
        order=Order.PEERS,
        pattern=r'Timed out waiting \d+ ?ms for',
        example=(
            'RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:'
            '81] Timed out waiting 1800000ms for recv operation to complete'
        ),
        healthy=_GLOO_CONNECTED,
        writer='Gloo, gloo/transport/tcp/unbound_buffer.cc',
        since='2018',
        is_sure=True,
    ),
    Pattern(
        cause='rank_waits',
        order=Order.PEERS,
        pattern=r'Ranks? [\d, ]+ failed to pass monitoredBarrier in \d',
        example=(
            'RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in '
            '1800000 ms'
        ),
        healthy=_GLOO_CONNECTED,
        writer='PyTorch, torch/csrc/distributed/c10d/ProcessGroupGloo.cpp',
        is_sure=True,
    ),
    Pattern(
        cause='rank_never_came',
        order=Order.PEERS,
        pattern='(?i:timed out .{0,60}(?:store.based barrier|process group))',
        example=(
            'torch.distributed.DistStoreError: Timed out initializing process group in '
            'store based barrier on rank 0, for key: store_based_barrier_key:1 '
            '(world_size=8, num_workers_joined=7, timeout=0:30:00'
        ),
        healthy=(
            'Rank 0: Completed store-based barrier for key:store_based_barrier_key:1 '
            'with 2 nodes.'
        ),
        writer='PyTorch, torch/distributed/distributed_c10d.py',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='rank_never_came',
        order=Order.PEERS,
        pattern=r'Timed out after \d+ seconds waiting for clients',
        example=(
            'torch.distributed.DistStoreError: Timed out after 901 seconds waiting for '
            'clients. 1/2 clients joined.'
        ),
        healthy=(
            '[I socket.cpp:522] [c10d - debug] The server socket has started to listen '
            'on [::]:29500.'
        ),
        writer='PyTorch, torch/csrc/distributed/c10d/TCPStore.cpp',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='rank_never_came',
        order=Order.PEERS,
        pattern='client socket has timed out',
        example=(
            'torch.distributed.DistNetworkError: The client socket has timed out after '
            '600000ms while trying to connect to (10.0.0.1, 29500).'
        ),
        healthy=(
            '[W socket.cpp:601] [c10d] The client socket has failed to connect to '
            '[node1]:29500 (errno: 111 - Connection refused).'
        ),
        writer='PyTorch, torch/csrc/distributed/c10d/socket.cpp',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='rank_never_came',
        order=Order.PEERS,
        pattern=r'rendezvous\.api\.RendezvousTimeoutError',
        example='torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError',
        healthy=NoNeighbour.RAISED,
        writer='PyTorch, torch/distributed/elastic/rendezvous/dynamic_rendezvous.py',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='rank_never_came',
        order=Order.PEERS,
        pattern='Bootstrap : no socket interface found',
        example=(
            'gpu03:4021:4021 [0] bootstrap.cc:97 NCCL WARN Bootstrap : no socket '
            'interface found'
        ),
        healthy='gpu03:4021:4021 [0] NCCL INFO Bootstrap : Using eth0:10.10.0.3<0>',
        writer='NCCL, src/bootstrap.cc',
        is_sure=True,
    ),
    Pattern(
        cause='rank_never_came',
        order=Order.PEERS,
        pattern=r'socketStartConnect: Connect to \S+ failed ',
        example=(
            'node2:911:1203 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: '
            'Connect to 172.17.0.2<46081> failed : Connection refused'
        ),
        healthy=(
            'node2:911:1203 [0] NCCL INFO Call to connect returned Connection refused, '
            'retrying'
        ),
        writer='NCCL, src/misc/socket.cc',
    ),
    Pattern(
        cause='rank_never_came',
        order=Order.PEERS,
        pattern=r"store->get\('[^']{1,80}'\) got error: (?:Socket T|[Ww]ait t)imeout",
        example=(
            'torch.distributed.DistBackendError: [1] is setting up NCCL communicator '
            'and retrieving ncclUniqueId from [0] via c10d key-value store by '
            "store->get('0'), but store->get('0') got error: Socket Timeout"
        ),
        healthy=_WATCHDOG_STARTS,
        writer='PyTorch, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp',
    ),
    Pattern(
        cause='rank_never_came',
        order=Order.PEERS,
        pattern='Gloo connectFullMesh failed with ',
        example=(
            '[E ProcessGroupGloo.cpp:143] Gloo connectFullMesh failed with '
            '[../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error'
        ),
        healthy=_GLOO_CONNECTED,
        writer='PyTorch, torch/csrc/distributed/c10d/ProcessGroupGloo.cpp',
    ),
    Pattern(
        cause='uneven_inputs',
        order=Order.PEERS,
        pattern='Detected at least one rank that exhausted inputs',
        example=(
            'RuntimeError: Detected at least one rank that exhausted inputs. Throwing '
            'across all ranks.'
        ),
        healthy=NoNeighbour.RAISED,
        writer='PyTorch, torch/distributed/algorithms/join.py',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='rank_waits',
        order=Order.PEER_GONE,
        pattern='Received a dump signal due to a collective timeout from',
        example=(
            '[rank1]:[E1103 22:07:36.212402201 ProcessGroupNCCL.cpp:1484] [PG ID 0 PG '
            'GUID 0(default_pg) Rank 1] Received a dump signal due to a collective '
            'timeout from rank 0 and we will try our best to dump the debug info.'
        ),
        healthy=_WATCHDOG_STARTS,
        writer='PyTorch, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp',
    ),
    Pattern(
        cause='rank_waits',
        order=Order.PEERS,
        pattern='Detected mismatch between collectives on ranks',
        example=(
            'RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is '
            'running collective: CollectiveFingerPrint(OpType=ALLREDUCE'
        ),
        healthy=NoNeighbour.RAISED,
        writer='PyTorch, torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp',
        is_sure=True,
        is_raised=True,
    ),
    Pattern(
        cause='rank_waits',
        order=Order.PEER_GONE,
        pattern='Some NCCL operations have failed or timed out',
        example=(
            '[E ProcessGroupNCCL.cpp:474] Some NCCL operations have failed or timed '
            'out. Due to the asynchronous nature of CUDA kernels, subsequent GPU '
            'operations might run on corrupted/incomplete data.'
        ),
        healthy=_WATCHDOG_STARTS,
        writer='PyTorch, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp',
    ),
    Pattern(
        cause='rank_lost',
        order=Order.HINTED,
        pattern="Received data size doesn't match expected size",
        example=(
            '  what():  [enforce fail at ../third_party/gloo/gloo/transport/tcp/'
            'pair.cc:456] op.preamble.length <= op.nbytes. 128 vs 4. Received data '
            "size doesn't match expected size. Is there a distributed collective "
            'mismatch in your code?'
        ),
        healthy=_GLOO_CONNECTED,
        writer='Gloo, gloo/transport/tcp/pair.cc',
        since='2022',
    ),
    Pattern(
        cause='rank_lost',
        order=Order.PEER_GONE,
        pattern=(
            '(?i:remote process exited or there was a network error|ncclRemoteError)'
        ),
        example=(
            'torch.distributed.DistBackendError: NCCL error in: '
            'ProcessGroupNCCL.cpp:1269, remote process exited or there was a network '
            'error, NCCL version 2.18.1'
        ),
        healthy='NCCL version 2.18.5+cuda12.1',
        writer='NCCL, src/init.cc',
        since='2.13',
    ),
    Pattern(
        cause='rank_lost',
        order=Order.PEER_GONE,
        pattern=(
            r'(?i:(?:gloo|pair\.cc|NCCL|c10d|TCPStore).{0,300}'
            'closed by (?:remote )?peer)'
        ),
        example=(
            'RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] '
            'Connection closed by peer [127.0.0.1]:10895'
        ),
        healthy=_GLOO_CONNECTED,
        writer='Gloo, gloo/transport/tcp/pair.cc',
        since='2018',
    ),
    Pattern(
        cause='rank_lost',
        order=Order.PEER_GONE,
        pattern=r'(?i:(?:gloo|pair\.cc|NCCL|c10d|TCPStore).{0,300}reset by peer)',
        example=(
            'RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:525] Read '
            'error [127.0.0.1]:3324: Connection reset by peer'
        ),
        healthy=_GLOO_CONNECTED,
        writer='Gloo, gloo/transport/tcp/pair.cc',
        since='2017',
    ),
    Pattern(
        cause='rank_lost',
        order=Order.PEER_GONE,
        pattern=r'watchdog got stuck for \d',
        example=(
            "[Rank 7] ProcessGroupNCCL's watchdog got stuck for 480 seconds without "
            'making progress in monitoring enqueued collectives.'
        ),
        healthy=_WATCHDOG_STARTS,
        writer='PyTorch, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp',
    ),
    Pattern(
        cause='rank_lost',
        order=Order.PEER_GONE,
        pattern=r'[Hh]eartbeat monitor timed out[!.]',
        example=(
            '[Rank 7] Heartbeat monitor timed out! Process will be terminated after '
            'dumping debug info.'
        ),
        healthy=_WATCHDOG_STARTS,
        writer='PyTorch, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp',
    ),
    Pattern(
        cause='rank_lost',
        order=Order.PEER_GONE,
        pattern='recvValue failed on ',
        example=(
            '[rank7]:[W1120 01:13:20.886560089 TCPStore.cpp:125] [c10d] recvValue '
            'failed on SocketImpl(fd=81, addr=[localhost]:49590, '
            'remote=[localhost]:29500): failed to recv, got 0 bytes'
        ),
        healthy=_GROUP_NOT_DESTROYED,
        writer='PyTorch, torch/csrc/distributed/c10d/TCPStore.cpp',
    ),
    Pattern(
        cause='rank_lost',
        order=Order.PEER_GONE,
        pattern='sendBytes failed on ',
        example=(
            '[rank7]:[W1120 01:13:20.886560089 TCPStore.cpp:106] [c10d] sendBytes '
            'failed on SocketImpl(fd=81, addr=[localhost]:49590, '
            'remote=[localhost]:29500): Broken pipe'
        ),
        healthy=_GROUP_NOT_DESTROYED,
        writer='PyTorch, torch/csrc/distributed/c10d/TCPStore.cpp',
    ),
    Pattern(
        cause='rank_lost',
        order=Order.PEER_GONE,
        pattern='NCCL communicator was aborted on rank ',
        example='RuntimeError: NCCL communicator was aborted on rank 1.',
        healthy=(
            'gpu7:27106:27302 [0] NCCL INFO comm 0x5579c3a6e2f0 rank 0 nranks 2 '
            'cudaDev 0 busId 3b000 - Abort COMPLETE'
        ),
        writer='PyTorch, torch/csrc/distributed/c10d/NCCLUtils.hpp',
    ),
    Pattern(
        cause='rank_lost',
        order=Order.PEER_GONE,
        pattern=r'srun: error: Node failure on \S',
        example='srun: error: Node failure on gpu17',
        healthy=_SRUN_ALLOCATED,
        writer='Slurm, src/srun/allocate.c',
        since='1.0',
    ),
    Pattern(
        cause='rank_lost',
        order=Order.CRASHED,
        pattern=r'failed \(exitcode: -(?:11|[4678])\) (?:local_rank: \d+ )?\(pid: \d',
        example=(
            'ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -11)'
            ' local_rank: 5 (pid: 2630) of binary: /env/bin/python'
        ),
        healthy=_TORCHRUN_ENDED,
        writer='PyTorch, torch/distributed/elastic/multiprocessing/api.py',
    ),
    Pattern(
        cause='rank_lost',
        order=Order.CRASHED,
        pattern=r'\] exits with return code = -(?:11|[4678])\b',
        example=(
            '[2023-09-10 11:45:59,870] [ERROR] [launch.py:434:sigkill_handler] '
            "['/usr/bin/python3', '-u', 'main.py'] exits with return code = -6"
        ),
        healthy=_DEEPSPEED_ENDED,
        writer='DeepSpeed, deepspeed/launcher/launch.py',
        since='0.5',
    ),
    Pattern(
        cause='rank_lost',
        order=Order.CRASHED,
        pattern=(
            r'process rank \d+ with PID \S+ on node \S+ exited on signal '
            r'(?:11|[4678])\b'
        ),
        example=(
            'mpirun noticed that process rank 3 with PID 11920 on node gpu7 exited on '
            'signal 11 (Segmentation fault).'
        ),
        healthy=_MPIRUN_BOUND,
        writer='Open MPI, orte/tools/orterun/help-orterun.txt',
        since='1.3',
    ),
    Pattern(
        cause='rank_lost',
        order=Order.CRASHED,
        pattern=r'KILLED BY SIGNAL: (?:11|[4678])\b',
        example='=   KILLED BY SIGNAL: 11 (Segmentation fault)',
        healthy=_INTEL_MPI_STARTS,
        writer='Intel MPI, mpiexec.hydra',
    ),
    Pattern(
        cause='rank_lost',
        order=Order.CRASHED,
        pattern='terminated with signal SIG(?:SEGV|ABRT|BUS)',
        example=(
            'torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated '
            'with signal SIGSEGV'
        ),
        healthy=NoNeighbour.RAISED,
        writer='PyTorch, torch/multiprocessing/spawn.py',
    ),
    Pattern(
        cause='rank_lost',
        order=Order.CRASHED,
        pattern=r'died with <Signals\.SIG(?:SEGV|ABRT|BUS)',
        example=(
            "subprocess.CalledProcessError: Command '['/opt/conda/bin/python', '-u', "
            "'./tools/train.py']' died with <Signals.SIGSEGV: 11>."
        ),
        healthy=NoNeighbour.RAISED,
        writer='Python, Lib/subprocess.py',
    ),
    Pattern(
        cause='rank_lost',
        order=Order.CRASHED,
        pattern=r'srun: error: \S+: tasks? [\d,-]+: Segmentation fault',
        example='srun: error: gpu1: task 2: Segmentation fault (core dumped)',
        healthy='srun: gpu1: task 0: Completed',
        writer='Slurm, src/srun/launch.c',
    ),
    Pattern(
        cause='rank_lost',
        order=Order.CRASHED,
        pattern=r'srun: error: \S+: tasks? [\d,-]+: Aborted',
        example='srun: error: gpu1: task 2: Aborted (core dumped)',
        healthy='srun: gpu1: task 0: Completed',
        writer='Slurm, src/srun/launch.c',
    ),
    Pattern(
        cause='rank_lost',
        order=Order.CRASHED,
        pattern=r'srun: error: \S+: tasks? [\d,-]+: Bus error',
        example='srun: error: gpu1: task 2: Bus error (core dumped)',
        healthy='srun: gpu1: task 0: Completed',
        writer='Slurm, src/srun/launch.c',
    ),
    Pattern(
        cause='unknown',
        order=Order.CRASHED,
        pattern=(
            r'^(?:Fatal Python error: )?Segmentation fault(?:: 11)?\.?'
            r'(?:$| +\([^()]{0,40}\)$)'
        ),
        example='Fatal Python error: Segmentation fault',
        healthy='Timeout (0:00:30)!',
        writer='Python, Modules/faulthandler.c',
    ),
    Pattern(
        cause='unknown',
        order=Order.CRASHED,
        pattern='^Fatal Python error: Aborted$',
        example='Fatal Python error: Aborted',
        healthy='Timeout (0:00:30)!',
        writer='Python, Modules/faulthandler.c',
    ),
    Pattern(
        cause='unknown',
        order=Order.CRASHED,
        pattern=r'^Aborted(?:: 6)?!?(?:$| +\([^()]{0,40}\)$)',
        example='Aborted (core dumped)',
        healthy=_BASH_DONE,
        writer='bash, jobs.c',
    ),
    Pattern(
        cause='unknown',
        order=Order.CRASHED,
        pattern=r'^Bus error(?:: 10)?(?:$| +\([^()]{0,40}\)$)',
        example='Bus error (core dumped)',
        healthy=_BASH_DONE,
        writer='bash, jobs.c',
    ),
    Pattern(
        cause='unknown',
        order=Order.CRASHED,
        pattern=(
            r'^(?:Illegal instruction|Floating point exception)'
            r'(?:: \d)?(?:$| +\([^()]{0,40}\)$)'
        ),
        example='Illegal instruction',
        healthy=_BASH_DONE,
        writer='bash, jobs.c',
    ),
    Pattern(
        cause='unknown',
        order=Order.CRASHED,
        pattern=(
            rf'^(?:zsh: |{_JOB})(?:segmentation fault|abort|bus error'
            r'|illegal hardware instruction|floating point exception)\b'
        ),
        example='zsh: segmentation fault  python tools/train.py',
        healthy=_ZSH_DONE,
        writer='zsh, Src/signames2.awk',
        since='3.1',
    ),
    Pattern(
        cause='unknown',
        order=Order.CRASHED,
        pattern='Memory access fault by GPU node-',
        example=(
            'Memory access fault by GPU node-1 (Agent handle: 0x55d5f1e9a2b0) on '
            'address 0x7f4f2be00000. Reason: Page not present or supervisor privilege.'
        ),
        healthy=NoNeighbour.SILENT,
        writer='ROCm, runtime/hsa-runtime/core/runtime/runtime.cpp',
    ),
    Pattern(
        cause='unknown',
        order=Order.CRASHED,
        pattern=r'line \d+:\s+\d+ Segmentation fault',
        example='run.sh: line 1:  1234 Segmentation fault      (core dumped) python',
        healthy=_BASH_DONE,
        writer='bash, jobs.c',
    ),
    Pattern(
        cause='unknown',
        order=Order.CRASHED,
        pattern=r'line \d+:\s+\d+ Aborted',
        example='run.sh: line 1:  1234 Aborted                 (core dumped) python',
        healthy=_BASH_DONE,
        writer='bash, jobs.c',
    ),
    Pattern(
        cause='unknown',
        order=Order.CRASHED,
        pattern=r'line \d+:\s+\d+ Bus error',
        example='run.sh: line 1:  1234 Bus error               (core dumped) python',
        healthy=_BASH_DONE,
        writer='bash, jobs.c',
    ),
    Pattern(
        cause='unknown',
        order=Order.WRAPPER,
        pattern='ChildFailedError:',
        example='torch.distributed.elastic.multiprocessing.errors.ChildFailedError:',
        healthy=_TORCHRUN_ENDED,
        writer='PyTorch, torch/distributed/elastic/multiprocessing/errors/__init__.py',
        since='2022',
    ),
    Pattern(
        cause='unknown',
        order=Order.WRAPPER,
        pattern='ProcessRaisedException:',
        example='torch.multiprocessing.spawn.ProcessRaisedException:',
        healthy=NoNeighbour.RAISED,
        writer='PyTorch, torch/multiprocessing/spawn.py',
    ),
    Pattern(
        cause='unknown',
        order=Order.WRAPPER,
        pattern='CalledProcessError: Command ',
        example=(
            "subprocess.CalledProcessError: Command '['python', 'train.py']' returned "
            'non-zero exit status 1.'
        ),
        healthy=NoNeighbour.RAISED,
        writer='Python, Lib/subprocess.py',
    ),
    Pattern(
        cause='unknown',
        order=Order.WRAPPER,
        pattern=r'failed \(exitcode: -?[1-9]\d*\) (?:local_rank: \d+ )?\(pid: \d',
        example=(
            'ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) '
            'local_rank: 2 (pid: 2630) of binary: /env/bin/python'
        ),
        healthy=_TORCHRUN_ENDED,
        writer='PyTorch, torch/distributed/elastic/multiprocessing/api.py',
    ),
    Pattern(
        cause='unknown',
        order=Order.WRAPPER,
        pattern=r'(?:^|: )Exited with exit code [1-9]\d*\.?$',
        example='srun: error: gpu1: task 2: Exited with exit code 1',
        healthy='srun: gpu1: task 0: Completed',
        writer='Slurm, src/srun/launch.c',
        since='1.0',
    ),
    Pattern(
        cause='unknown',
        order=Order.WRAPPER,
        pattern='exited with non-zero status [1-9]',
        example='Command exited with non-zero status 1',
        healthy='\tExit status: 0',
        writer='GNU time, src/time.c',
    ),
    Pattern(
        cause='unknown',
        order=Order.WRAPPER,
        pattern='^docker: Error response from daemon: ',
        example=(
            'docker: Error response from daemon: could not select device driver "" '
            'with capabilities: [[gpu]].'
        ),
        healthy=NoNeighbour.SILENT,
        writer='Docker, cli/command/container/run.go',
    ),
    Pattern(
        cause='unknown',
        order=Order.WRAPPER,
        pattern='BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES',
        example='=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES',
        healthy=_INTEL_MPI_STARTS,
        writer='MPICH and Intel MPI, src/pm/hydra/mpiexec/pmiserv_cb.c',
        since='1.5',
    ),
    Pattern(
        cause='unknown',
        order=Order.WRAPPER,
        pattern=rf'(?:{_ENDED_WITH}|{_EXIT_CODE})-?[1-9]\d*{_NO_MORE}',
        example='ERROR: Job failed: command terminated with exit code 1',
        healthy='Job succeeded',
        writer='GitLab Runner',
    ),
    Pattern(
        cause='unknown',
        order=Order.WRAPPER,
        pattern=r'\(core dumped\)',
        example='Trace/breakpoint trap (core dumped)',
        healthy=_BASH_DONE,
        writer='bash, jobs.c',
    ),
    Pattern(
        cause='unknown',
        order=Order.WRAPPER,
        pattern=r'\] exits with return code = -?[1-9]',
        example=(
            '[2023-09-10 11:45:59,870] [ERROR] [launch.py:434:sigkill_handler] '
            "['/usr/bin/python3', '-u', 'main.py'] exits with return code = 1"
        ),
        healthy=_DEEPSPEED_ENDED,
        writer='DeepSpeed, deepspeed/launcher/launch.py',
        since='0.5',
    ),
    Pattern(
        cause='unknown',
        order=Order.WRAPPER,
        pattern=r'(?:^|\d )User defined signal [12]\b',
        example='slurm_script: line 9:   222 User defined signal 1   srun python a.py',
        healthy=_BASH_DONE,
        writer='bash, jobs.c',
    ),
    Pattern(
        cause='unknown',
        order=Order.WRAPPER,
        pattern='^terminate called (?:after throwing|without)',
        example="terminate called after throwing an instance of 'c10::Error'",
        healthy=NoNeighbour.SILENT,
        writer='GCC, libstdc++-v3/libsupc++/vterminate.cc',
    ),
)
