"""A table of regular expressions over a console log: what ended the run.

Pure: lines in, events out; memory does not grow with the log. A line is cleaned of
colours, time stamps and rank prefixes first. An event that training survived, because
iterations went on after it, is dropped.
"""

from __future__ import annotations

import codecs
import enum
import io
import re
from collections import defaultdict, deque
from collections.abc import Iterator
from functools import partial
from typing import Any, BinaryIO, NamedTuple

MOST_BYTES = 64 * 2**20
"""Of a longer log the end is read: 10 s; what was before, training survived."""

_CHUNK_BYTES = 2**18
_MARKED = {codecs.BOM_UTF16_LE: 'utf-16-le', codecs.BOM_UTF16_BE: 'utf-16-be'}

_MOST_LETTERS = 2**16
"""A longer line counts as several; `\\r` ends a line here, as `\\n` does."""

_CONTEXT = 400
"""Lines after a traceback's last frame within which it may end; ranks interleave."""

_SURVIVED = 3
"""Iterations after which training evidently went on."""


_NEAR = 5
"""Lines within which one belongs to the next, though ranks interleave."""


class Order(enum.IntEnum):
    """Which sign wins, smallest first."""

    STATED = 0
    """The kernel or the scheduler says so."""
    RESOURCE = 10
    """An exception names what ran out, or what is wrong."""
    HINTED = 15
    """It says so less plainly."""
    WORKER = 20
    """What a loader's worker met."""
    WATCHED = 22
    """The hook's own watchdog said so."""
    WRAPPED = 25
    LOST = 30
    """A worker is gone."""
    KILLED = 40
    """SIGKILL of a whole process."""
    KILLED_TOO = 45
    """The same, where a launcher may have sent it to end the others."""
    ENDED = 50
    """A person or the scheduler ended it."""
    RAISED = 60
    """An exception that no sign knows."""
    AFTER = 70
    """What follows when a worker or the run was ended."""
    PEERS = 80
    """What ranks say of other ranks."""
    PEER_GONE = 84
    CRASHED = 88
    WRAPPER = 90
    """It ended badly, and no more."""


class Sign(NamedTuple):
    """Lines that say the same."""

    cause: str
    order: Order
    pattern: re.Pattern[str] | None = None
    is_sure: bool = False
    is_raised: bool = False
    """Counts only as an exception: at the start of a line, or within a traceback."""
    victim: str = ''
    """Who got a SIGKILL: ``worker``, ``rank`` or ``process``."""
    needs: str = ''
    """A flag that frames of the traceback set."""
    survives: int = _SURVIVED
    """Iterations; more where workers go on for a while."""


_TABLE = r"""
STATED oom_cgroup sure
    Memory cgroup out of memory|oom-kill:constraint=CONSTRAINT_MEMCG
    Detected \d+ oom[-_]kill event|\btasks? [\d,-]+: Out Of Memory
    \bOUT_OF_ME\w*\b|\bOOMKilled\b
    (?i:exceeded (?:job|step) memory limit|memory limit .{0,80}being killed)
    TERM_MEMLIMIT|PBS: job killed: v?mem .*exceeded limit
    hit memory(?:\+swap)? limit at least once
STATED oom_host sure
    (?<!cgroup )[Oo]ut of memory: Kill(?:ed)? process
    oom-kill:constraint=CONSTRAINT_(?:NONE|CPUSET)
    (?:systemd-oomd|earlyoom).*[Kk]ill|low on resource: memory
    OutOfMemoryError: Task was killed due to the node|killed due to memory pressure
STATED oom_host
    session crashed after using all available RAM|tried to allocate more memory than
    killed by the OOM killer|Failed with result 'oom-kill'
STATED disk_full sure
    low on resource: ephemeral-storage|ephemeral.storage usage exceeds
STATED gpu_lost sure
    Xid \([^)]*\): (?:48|62|63|64|74|79|92|94|95|110|119|120|121|140|143)\b
    (?i:GPU has fallen off the bus|GPU is lost)
    Unable to determine the device handle for GPU
STATED gpu_lost
    (?i:GPU requires (?:a )?reset|RmInitAdapter failed)
HINTED storage_stalled
    nfs: server \S+ not responding
    (?:ceph|Lustre).*(?:hung|lost connection|session lost)
    task (?:python|pt_data_worker)\S*:\d+ blocked for more than
ENDED preempted sure
    CANCELLED (?:AT .*)?DUE TO |TERM_(?:PREEMPT|RUNLIMIT)
    PBS: job killed: walltime .* exceeded limit|exceeded hard wallclock
    this job is (?:preempted|timed-out)|Preempted (?:in order to admit|by) \S
    (?i:\bjob .{0,20}\bpreempted)
ENDED preempted
    (?i:(?:spot|preemptible).{0,40}(?:interrupt|terminat|reclaim))
    (?i:preempt(?:ion|ed).{0,30}(?:signal|notice|by scheduler))
    [Rr]eason: +(?:Preempted|Evicted)|[Pp]od was (?:preempted|evicted)
ENDED interrupted sure raised
    (?:^|[\s:\]])KeyboardInterrupt\b(?!.*[Pp]ress)
    SignalException: .*got signal: (?:1|2|15)\b
ENDED interrupted sure
    (?:^|[\]\s|])\^C(?:\s|$|Traceback)|srun: (?:interrupt \(|sending Ctrl-C)
    Received (?:1|2|15|Signals\.SIG\w+) death signal|^Hangup$
ENDED interrupted
    \*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+ \*\*\*
    CANCELLED AT \S+ DUE to SIGNAL|exited on signal 2 \(
    closing signal SIG(?:INT|HUP)|Detected KeyboardInterrupt
    DataLoader worker .*killed by signal: (?:Interrupt|Hangup)
AFTER interrupted
    ^Terminated$|Received SIGTERM|line \d+:\s+\d+ Terminated
    (?:terminated by|exited on) signal (?:SIGTERM|15)
    (?i:exit(?:ed)?.{0,8} code:? 143\b)
RESOURCE shm_full sure survives=64
    (?:SHM).*(?:No space left|\(28\)|Errno 28)|No space left.*(?:SHM)
RESOURCE open_files sure survives=64
    received \d+ items of ancdata|Too many open files|\[Errno 24\]
RESOURCE oom_host survives=64
    unable to mmap .*Cannot allocate memory
RESOURCE shm_full survives=64
    (?i:unable to allocate shared memory ?\(shm\))
    unable to (?:write to|resize) file </?torch_
    Error while creating shared memory segment
WORKER shm_full
    killed by signal: Bus error|insufficient shared memory
HINTED open_files raised survives=64
    unable to open shared memory object .*read-write mode(?!.*\d+\))
RESOURCE oom_gpu sure raised
    (?:CUDA|HIP|XPU|NPU|MPS backend) out of memory|(?:^|\.)OutOfMemoryError: (?!Task)
    (?i:CUDA (?:runtime )?error.{0,10}: out of memory)
RESOURCE oom_gpu
    CUDA_ERROR_OUT_OF_MEMORY|Cuda failure.*'out of memory'
RESOURCE oom_gpu raised
    CU(?:BLAS|DNN|SOLVER)_STATUS_ALLOC_FAILED|Unable to find a valid cuDNN algorithm
    unable to find an engine to execute this computation
RESOURCE gpu_lost sure raised
    uncorrectable ECC error
RESOURCE gpu_lost raised
    over nvlink or a hardware error
RESOURCE shm_full needs=shm
    \[Errno 28\] No space left on device
RESOURCE disk_full sure
    Disk quota exceeded|\[Errno 122\]|database or disk is full
    (?i:(?:: |\[Errno 28\] )no space left on device)
HINTED disk_full raised
    PytorchStreamWriter failed writing|inline_container\.cc.*unexpected pos
    No usable temporary directory found
RESOURCE oom_host sure raised
    DefaultCPUAllocator: (?:can't allocate|not enough) memory
    \[Errno 12\]|OSError: .*Cannot allocate memory
    (?:^|\.)_?(?:Array)?MemoryError\b|\(-4:Insufficient memory\)
RESOURCE oom_host sure
    WinError 1455|error code: <1455>|paging file is too small|fork: Cannot allocate
RESOURCE oom_host
    std::bad_alloc
RESOURCE resume_refused sure raised
    Weights only load failed|Unsupported global: GLOBAL|WeightsUnpickler error
RESOURCE nan_loss sure
    (?i:loss bec[ao]me infinite or nan|FloatingPointError: .*(?:nan|infin|loss scale))
    (?i:\bloss is (?:nan|inf),? ?(?:stopping|exit|abort|terminat))
RESOURCE nan_loss raised
    loss scale already at minimum|matrix contains invalid numer|returned nan values
RESOURCE config_error sure raised
    is not in the .{0,60}\bregistry|'ConfigDict' object has no attribute
    Duplicate key is not allowed among bases|Failed to import custom modules
    Only py/yml/yaml/json type are supported|^(?:omegaconf|hydra)\.
    (?:prefetch_factor|persistent_workers|timeout) option (?:could|needs|should)
    num_classes.*does not match|does not matches the length of
    (?:not a valid|Non-existent) config key
HINTED config_error raised
    Class values must be smaller than num_classes
RESOURCE config_error sure
    ^\S+(?:\.py|torchrun|train): error:\s|^Could not override '
RESOURCE config_error sure raised needs=config
    unexpected keyword arg
HINTED config_error raised needs=config
    (?:Syntax|Indentation|Name|FileNotFound|NotADirectory)Error:\s
WORKER storage_stalled raised
    Stale (?:NFS )?file handle|\[Errno 1(?:07|12|16)\]
    Transport endpoint is not connected
WORKER oom_host victim=worker
    DataLoader worker .*killed by signal: Killed
WORKER worker_killed sure
    DataLoader worker .*killed by signal: (?:Segm|Abort|Illegal|Floating|Trace)
    Unexpected (?:segmentation fault|floating.point exception) encountered in worker
LOST worker_killed
    DataLoader worker .*(?:killed by signal:|exited unexpectedly)
WORKER worker_stuck sure raised
    DataLoader timed out after [\d.]+ sec
WRAPPED sample_raised sure
    Caught \w+ in DataLoader worker process
AFTER worker_killed needs=loader
    ^(?:Connection(?:Reset|Refused)|EOF|BrokenPipe)Error\b
WRAPPED unknown raised needs=spawn
    ^[\w.]*(?:Error|Exception)\b
AFTER unknown raised
    Pin memory thread exited unexpectedly
KILLED oom_host victim=process
    (?:^|[\]\)]\s?|\ds)Killed(?:: 9)?$|^(?:已杀死|zsh: killed\b.*)$
    line \d+:\s+\d+ Killed\b|^\[\d+\]\+?\s+\d* ?Killed\b
    (?i:exit(?:ed)?(?: with)?[ _]?(?:status|code)?[ :=]+137\b)
    terminated by signal (?:SIGKILL|9)\b|code=killed, status=9
KILLED oom_host victim=rank
    \(exitcode: -9\)|exited on signal 9|KILLED BY SIGNAL: 9|died with <Signals.SIGKILL
    exits with return code = -9|terminated with signal SIGKILL
KILLED_TOO oom_host victim=rank
    srun: error: .*\btasks? [\d,-]+: Killed
KILLED_TOO oom_host victim=rank needs=root
    exitcode\s+: -9\b|Signal 9 \(SIGKILL\) received
PEERS rank_waits sure
    Watchdog caught collective operation timeout
    ran for \d+ milliseconds before timing out
    Timed out waiting \d+ ?ms for|failed to pass monitoredBarrier
PEERS rank_waits sure raised
    (?i:timed out .{0,60}(?:store.based barrier|process group))
    Timed out after \d+ seconds waiting for clients|client socket has timed out
    Detected mismatch between collectives on ranks
PEER_GONE rank_waits
    Some NCCL operations have failed or timed out
PEER_GONE rank_lost
    (?i:remote process exited or there was a network error|ncclRemoteError)
    (?i:(?:gloo|pair\.cc|NCCL|c10d|TCPStore).*(?:closed|reset) by (?:remote )?peer)
    watchdog got stuck|heartbeat monitor timed out|(?:recvValue|sendBytes) failed
    NCCL communicator was aborted|srun: error: Node failure on
CRASHED rank_lost
    (?:exitcode: -|return code = -|exited on signal |KILLED BY SIGNAL: )(?:11|[4678])\b
    (?:terminated with signal |died with <Signals\.)SIG(?:SEGV|ABRT|BUS)
    \btasks? [\d,-]+: (?:Segmentation fault|Aborted|Bus error)
CRASHED unknown
    ^(?:Fatal Python error: )?(?:Segmentation fault|Aborted|Bus error)\b
    line \d+:\s+\d+ (?:Segm|Abort|Bus e)|Memory access fault by GPU
WRAPPER unknown
    ChildFailedError|ProcessRaisedException|CalledProcessError|\(exitcode: -?\d+\)
    Exited with exit code [1-9]|exited with non-zero status|BAD TERMINATION
    exit(?:ed)? (?:code|status):? -?[1-9]\d*\b|\(core dumped\)
    exits with return code = -?[1-9]|User defined signal [12]\b
    ^terminate called (?:after throwing|without)
"""
"""Order, cause and marks; below them the patterns. SHM stands for what is in shared
memory; of two signs of one line the upper counts."""

_SHM = (
    r'/dev/shm|</?torch_|[\'" ]/torch_\d|shared memory|shm\)|shm\.h|shmutils'
    r'|posix_fallocate|/pym-'
)


def _read_table(table: str) -> Iterator[Sign]:
    for head, body in re.findall(r'^(\S.*)\n((?:    .*\n)+)', table, re.MULTILINE):
        order, cause, *marks = head.split()
        values = dict(mark.partition('=')[::2] for mark in marks)
        pattern = '|'.join(line.strip() for line in body.splitlines())
        yield Sign(
            cause,
            Order[order],
            re.compile(pattern.replace('SHM', _SHM)),
            is_sure='sure' in values,
            is_raised='raised' in values,
            victim=values.get('victim', ''),
            needs=values.get('needs', ''),
            survives=int(values.get('survives', _SURVIVED)),
        )


def _any(patterns: str, form: str = '(?:{})') -> re.Pattern[str]:
    """One expression of several, each on a line of its own."""
    return re.compile(form.format('|'.join(patterns.strip('\n').splitlines())))


_SIGNS = tuple(_read_table(_TABLE))

_TRIGGER = _any(r"""
rror|xception|nterrupt|illed|KILL|Xid|GPU|CANCELLED|reempt|PREEMPT|Traceback|File "
│|space left|quota|ignal|egmentation|bort|Terminated|Hangup|losed|imed out|timeout
timing out|TERM|of memory|OUT_OF|Out Of|allocate|shm|reset by|shared memory|nan\b|inf\b
NaN|victed|resource: |exit|Exit|\^C|responding|ALLOC|Root Cause|reclaim|blocked for|oom
OOM|by peer|terminate|dumped|exceed|hung|lost|Bus e|已杀死|collectives|watchdog
heartbeat|failed|unexpected|Caught|override|nvironment|session crashed
mmgpu explain|epochs comp|rain(?:er\.fit|_runtime|ing (?:time|compl|finish|is d|done))
""")
"""Whatever a sign holds holds one of these; other lines can only be progress."""

_ANSI = re.compile(
    r'\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])'
)
_PREFIX = _any(
    r"""
\[?\d{4}[-/]\d\d[-/]\d\d[T _]\d\d:\d\d:\d\d[.,\d]*(?:Z|[+-]\d\d:?\d\d)?\]?[ ,:|-]*
\d\d/\d\d \d\d:\d\d:\d\d - \w+ - (?!WARN)[A-Z]+ -[ ]
std(?:out|err)(?: [FP]|:)[ ]
\[?(?:default|[Rr]ank)[ _]?(?P<a>\d{1,4})\]?: ?|(?P<b>\d{1,4}):[ ]|\[(?P<h>\d{1,4})\]:\s
\[\d+,(?P<c>\d{1,4})\]<std(?:err|out)>: ?|\(\w+ pid=\d+[^)]*\)[ ]
(?:[\w.-]+-\d+|worker\S*|node\S*|gpu\S*) +\|[ ]
[\w.-]+-\d+:[ ](?=\S*(?:Error|Trace)|  File)
(?:\w+ - )?(?:ERROR|CRITICAL|FATAL)(?: -|:)? (?=\S*(?:Error|Exception|Interrupt)\b)
""",
    r'(?:\s*(?:{})){{0,4}}',
)
_BAR = re.compile(
    r'^.*?(?:\d+%\|[^|]*\|\s*\S+ \[[^\]]*\]|task/s, elapsed: \d+s, ETA:\s+\d+s'
    r'|\[\d\d:\d\d<[^\]]*\])'
)
_IN_CONFIG = (
    r'(?:mmengine|mmcv/utils)/(?:config|registry)|/addict/|argparse\.py'
    r'|mmengine/optim/optimizer/(?:builder|default_constructor)'
)
_STANDARD = re.compile(r'/lib/python\d[\d.]*/(?!site-packages|dist-packages|argparse)')
_HEADER = re.compile(r'Traceback \(most recent call last\)|╭─+ Traceback')
_FRAME = re.compile(r'^\s*(?:\|\s*)?File "([^"]+)", line (\d+)(?:, in (\S+))?')
_RICH_FRAME = re.compile(r'^\s*│ (\S+\.py):(\d+)\s+(?:in (\S+))?')
_EXCEPTION = re.compile(
    r'^(?:[A-Za-z_]\w*\.)*(?:\w*(?:Error|Exception|Exit|Failure|Invalid\w*)|error'
    r'|Timeout\w*|StopIteration)(?::|$)'
)
_NAMED_FREELY = re.compile(r'^(?:[A-Za-z_]\w*\.)*[A-Z]\w*[a-z]\w*(?:: |$)')
"""An exception of any name, where only an exception can stand."""
_DECORATION = re.compile(r'^[│╰─ ]*(?:E +)?')
"""What rich and pytest put before an exception."""
_QUIET = re.compile(
    r'^(?:\w+\.)*(?:Empty|SystemExit|ModuleNotFoundError: No module named .(?:apex'
    r'|tensorboard|flash_attn))'
)
_PROGRESS = _any(r"""
(?:Epoch|Iter) ?\((?:train|val|test)\) +((?:\[ *\d+(?:/ *\d+)?\] *)+)
Epoch:? ?(\[\d+\] ?\[ *\d+/\d+\])|Iter \[ *(\d+/\d+)\]|(?:%\|[^|]*\||[━─]) *(\d+/\d+)[ ]
(?i:(?:step|iter(?:ation)?|epoch)\w*[ :=#\[]+\d+)(.{0,40}loss)
^(?:\{'loss': ([^,]+),.*'epoch': [\d.]+| *(\d+/\d+) +[\d.]+G[ ])
""")
_LOSS = re.compile(
    r'(?i)(?:^|[\s,{\'"(])(?:total_)?loss[\'"]?\s*[:=]\s*\[?(?:tensor\()?'
    r'(nan|[-+]?inf|[-+.\d]+)'
)
_DONE = _any(r"""
`?Trainer\.fit`? stopped: `?max_|Total training time:|'train_runtime':
^\d+ epochs completed in |(?i:^\W*training (?:completed?|finished|(?:is )?done)\b)
""")
_START = re.compile(r'^(?:System environment|Environment info):')
_WARNING = re.compile(r'(?:^|[\s\[])(?:WARN(?:ING)?\b|\w*Warning:)')
_OWN = re.compile(r'\s*Cause: (\w+) \((sure|likely)\); mmgpu explain \1$')
"""What the hook's own warning says of a run that stands still."""
_FLAGS = {
    'data': r'torch/utils/data/_utils/(?:fetch|worker)\.py',
    'loader': r'torch/utils/data/|multiprocessing/(?:conn|queue|reso|redu)',
    'shm': r'multiprocessing/(?:synchronize|shared_memory)\.py',
    'config': _IN_CONFIG,
    'spawn': r'multiprocessing/spawn\.py',
}
"""What a frame of such a file says of its traceback."""
_LIBRARY = re.compile(
    r'site-packages|dist-packages|/lib/python\d|<frozen|lib/python3|mmgpu_hooks/hooks/'
)


class Event(NamedTuple):
    """A line that counts against the run."""

    sign: Sign
    line: int
    """In the file, from 1 on; 0 where it stands in none."""
    text: str
    order: int
    """Of all lines read, so that what came first is known."""
    progress: int
    """Iterations seen before it."""
    calm: int
    """Lines before it that are no part of a traceback."""
    rank: int | None = None
    frame: str | None = None
    """Innermost frame of the user's code in the traceback above it."""


class _Traceback:
    """Where one stream of lines stands in a traceback."""

    def __init__(self) -> None:
        self.flags: set[str] = set()
        self.seen = -_CONTEXT
        self.frame: str | None = None
        self.innermost = ''
        self.ignored = -_CONTEXT
        """Where Python said that it ignores the next one, as at its end."""
        self.is_in_frames = False
        """The next line that is not indented is the exception."""

    def begin(self, order: int, is_worker: bool) -> None:
        kept = self.flags & {'worker', 'root'} if is_worker else set()
        if order - self.ignored < _NEAR:
            kept = {'ignored'}
        self.flags, self.seen, self.frame, self.innermost = kept, order, None, ''

    def add(self, order: int, path: str, line: str, function: str | None) -> None:
        self.seen, self.is_in_frames = order, True
        path = path.replace('\\', '/')
        if not _STANDARD.search(path):
            self.innermost = path
        self.flags |= {name for name, file in _FLAGS.items() if re.search(file, path)}
        if function in ('_worker_loop', '__getitem__'):
            self.flags.add('data')
        if not _LIBRARY.search(path):
            self.frame = f'{path}:{line}' + (f' in {function}' if function else '')


class ConsoleLog:
    """Reads lines and keeps the events that training did not survive.

    At most two events of each sign are kept: the first, and the last.
    """

    def __init__(self) -> None:
        self.lines = 0
        """Number of the last line."""
        self.progress = 0
        """Distinct iterations that were logged."""
        self.last_progress = 0
        """The line of the last one; 0 where none was logged."""
        self.unread_bytes = 0
        """Before the first line that was read."""
        self._done = 0, 0
        self._order = 0
        self._frame = -_NEAR
        self._recent: deque[str] = deque(maxlen=64)
        self._tracebacks: dict[int | None, _Traceback] = defaultdict(_Traceback)
        self._events: dict[Sign, list[Event]] = {}
        self._calm = 0
        self._nans: list[Event] = []

    def feed(self, line: int, text: str) -> None:
        """Take one line, without its end."""
        self.lines = line
        self._order += 1
        if not _TRIGGER.search(text) and self._order - self._frame >= _NEAR:
            self._calm += 1
            if '[' in text or 'loss' in text or '%' in text or 'it/s' in text:
                self._note_progress(line, text)
            return
        text = _ANSI.sub('', text).rstrip()
        while '[' in text and '/' in text and (bar := _BAR.match(text)) is not None:
            self._note_progress(line, bar[0])
            text = text[bar.end() :]
        prefix = _PREFIX.match(text)
        assert prefix is not None  # it may be empty
        label = next(filter(None, prefix.groups()), None)
        rank, text = None if label is None else int(label), text[prefix.end() :]
        if text and not self._note_progress(line, text):
            self._read(line, text, rank, self._tracebacks[rank])

    def _read(
        self, line: int, text: str, rank: int | None, traceback: _Traceback
    ) -> None:
        order = self._order
        if _HEADER.search(text):
            traceback.begin(order, 'Original Traceback' in text)
        elif frame := _FRAME.match(text) or _RICH_FRAME.match(text):
            traceback.add(order, *frame.groups())
            self._frame = order
        elif 'Exception ignored in' in text:
            traceback.ignored = order
        elif 'Root Cause (first observed failure)' in text:
            traceback.begin(order, False)
            traceback.flags.add('root')
        elif _DONE.search(text):
            self._done = line, self.progress
            self._events.clear()
        elif _START.search(text) and self.progress:
            # another attempt in the same log: what ended the last one is past
            self._events.clear()
            self._nans = []
        elif sign := self._find_sign(text, traceback):
            event = self._event(sign, line, text, rank, traceback.frame)
            kept = self._events.setdefault(sign, [])
            kept[:] = [old for old in kept if self._is_alive(old)][:1]
            kept.append(event)
        elif order - traceback.seen > _CONTEXT:
            self._calm += 1

    def _find_sign(self, text: str, traceback: _Traceback) -> Sign | None:
        is_open = self._order - traceback.seen <= _CONTEXT
        raised = _DECORATION.sub('', text) if is_open else text
        is_exception = bool(_EXCEPTION.match(raised))
        if traceback.is_in_frames and not text[0].isspace():
            traceback.is_in_frames = False
            is_exception |= is_open and bool(_NAMED_FREELY.match(text))
        sign = _match_sign(text, raised, traceback, is_open, is_exception)
        if 'DataLoader worker process' in text:
            traceback.flags.add('worker')
        if sign is None and is_exception and not _QUIET.match(raised):
            sign = _UNNAMED if is_open else _BARE
            # by where it was raised
            if is_open and traceback.flags & {'data', 'worker'}:
                sign = _SAMPLE
            elif is_open and re.search(_IN_CONFIG, traceback.innermost):
                sign = _CONFIG
        is_ignored = is_open and 'ignored' in traceback.flags
        if sign and is_ignored and sign.order not in (Order.STATED, Order.ENDED):
            return None
        return sign

    def _event(self, sign: Sign, line: int, text: str, *where: Any) -> Event:
        order, progress, calm = self._order, self.progress, self._calm
        return Event(sign, line, text[:400], order, progress, calm, *where)

    def _note_progress(self, line: int, text: str) -> bool:
        is_progress = is_new = False
        # a bar may be glued to the line of a log
        for found in _PROGRESS.finditer(text):
            is_progress, self.last_progress = True, line
            key = next(filter(None, found.groups()), found[0])
            if key not in self._recent or 'loss' in key:
                self._recent.append(key)
                self.progress += 1
                is_new = True
        loss = _LOSS.search(text) if is_new else None
        if loss is not None:
            is_nan = loss[1][-1].lower() in 'nf'
            nan = self._event(_NAN, line, text.strip())
            self._nans = [*self._nans[:1], nan] if is_nan else []
        return is_progress

    def _is_alive(self, event: Event) -> bool:
        if self._calm - event.calm >= _CALM.get(event.sign, self._order):
            return False
        return self.progress - event.progress < event.sign.survives

    @property
    def done(self) -> int:
        """Line that says training is complete; 0 for none, or where it went on."""
        line, progress = self._done
        return line if self.progress - progress < _SURVIVED else 0

    def events(self) -> list[Event]:
        """What training did not survive, in the order it was read."""
        found = [e for kept in self._events.values() for e in kept if self._is_alive(e)]
        nans = self._nans
        if len(nans) > 1 and nans[-1].progress - nans[0].progress > 1:
            found.append(nans[0])
        if self.done:
            # workers and threads that complain while Python ends
            found = [event for event in found if event.sign.order <= Order.RESOURCE]
        return sorted(found, key=lambda event: event.order)


def _match_sign(
    text: str, raised: str, traceback: _Traceback, is_open: bool, is_exception: bool
) -> Sign | None:
    own = _OWN.match(text)
    if own is not None:
        return Sign(own[1], Order.WATCHED, is_sure=own[2] == 'sure')
    is_warning = bool(_WARNING.search(text[:60])) and not is_exception
    may_raise = is_exception or (is_open and not text.startswith((' ', '\t')))
    may_raise = may_raise or raised.startswith('KeyboardInterrupt')
    for sign in _SIGNS:
        if sign.needs and not (is_open and sign.needs in traceback.flags):
            continue
        if sign.is_raised and (is_warning or not may_raise):
            continue
        said = raised if sign.is_raised else text
        if sign.pattern and sign.pattern.search(said):
            return sign
    return None


_SAMPLE = Sign('sample_raised', Order.WORKER, is_sure=True)
_CONFIG = Sign('config_error', Order.HINTED)
_UNNAMED = Sign('unknown', Order.RAISED)
_BARE = Sign('unknown', Order.WRAPPER, survives=1)
_NAN = Sign('nan_loss', Order.RESOURCE, is_sure=True)
_CALM = {_UNNAMED: 200, _BARE: 5}
"""Ordinary lines after which an exception that no sign knows was caught."""


def read_log(file: BinaryIO, size: int = 0) -> ConsoleLog:
    """Read a log to its end and close it; bytes that are no UTF-8 are replaced.

    UTF-16 with a byte-order mark, as PowerShell writes, is taken too. Parts that only
    ``\\r`` ends share the number of a line.

    Args:
        file: The log.
        size: Its bytes where they are known: of more than `MOST_BYTES` the last count.
    """
    raw = io.BufferedReader(file)  # type: ignore[type-var]  # has what it needs
    encoding = _MARKED.get(raw.peek(2)[:2], 'utf-8')
    log, number = ConsoleLog(), 1
    while log.unread_bytes <= size - MOST_BYTES - _CHUNK_BYTES:
        number += raw.read(_CHUNK_BYTES).count(b'\n')
        log.unread_bytes += _CHUNK_BYTES
    with io.TextIOWrapper(raw, encoding, 'replace', newline='') as lines:
        for line in iter(partial(lines.readline, _MOST_LETTERS), ''):
            if text := line.strip('\ufeff\r\n'):
                log.feed(number, text)
            number += line.endswith('\n')
    return log
