"""Program of the child process that tunes a training's loader settings.

It answers questions, as long as it is asked, and imports what that takes alone: the
training has the cores.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec
from msgspec import structs

from mmgpu_hooks.adviser.ranks import choose_rank
from mmgpu_hooks.experiment.children import die_with_parent
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.tuning import answer_question
from mmgpu_hooks.recommend.tuning_validation import answer_on_validation
from mmgpu_hooks.schema.text import encode_text
from mmgpu_hooks.schema.tuning import TuneQuestion


def tune_while_training(evidence: str, parent: int) -> None:
    """Answers questions from stdin on the best loader settings, during a training.

    Args:
        evidence: Of rank 0.
        parent: Process id of the training; this process ends with it.
    """
    die_with_parent(parent)
    path, decoder = Path(evidence), msgspec.json.Decoder(TuneQuestion)
    with os.fdopen(os.dup(1), 'wb') as stream:
        for question in sys.stdin.buffer:
            began_s = time.process_time()
            judged = choose_rank(path, Run.read(path))
            asked = decoder.decode(question)
            if asked.loader == 'validation':
                answer = answer_on_validation(judged.run, asked)
            else:
                answer = answer_question(judged.run, asked, asking=judged.first)
            answer = structs.replace(answer, cpu_s=time.process_time() - began_s)
            line = msgspec.json.encode(answer, enc_hook=encode_text)
            stream.write(line + b'\n')
            stream.flush()
