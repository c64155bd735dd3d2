"""What our code says is said in our own words, but for the phrases that PyTorch's tests and users' scripts look for."""

import ast
import re
from pathlib import Path

import pytest
import torch

import impl

pytestmark = pytest.mark.slow

IN_A_ROW = 7  # words
WORD = re.compile(r"[a-z0-9_]+")

#: Each is matched, as it stands, by a test of PyTorch's own, and is as short as that test needs.
LOOKED_FOR = (
    "Expected to have finished reduction in the prior iteration",
    "Parameter indices which did not receive grad for rank",
    "set the environment variable TORCH_DISTRIBUTED_DEBUG to either INFO or DETAIL",
    "`forward` function outputs participate in calculating loss",
    "Your training graph has changed in this iteration",
    "should be called before training loop starts",
    "Expected to mark a variable ready only once.",
    "Expect `start_powerSGD_iter` > 1 if `use_error_feedback` or `warm_start` is enabled, because PowerSGD can only be "
    "applied after the first two iterations in DDP.",
    "Communication hook: bucket annotation should be dist.GradBucket",
    "Communication hook: return annotation should be torch.futures.Future",
    "callback must return a torch.futures.Future object, but got",
    "register_comm_hook or register_builtin_comm_hook can only be called once",
    "Cannot specify both process_group and device_mesh arguments.",
    "device_ids can only be None or contain a single element.",
    "input module must be on the same type of devices",
    "DistributedDataParallel device_ids and output_device arguments only work with single-device/multiple-device GPU "
    "modules or CPU modules",
    "Detected at least one rank that exhausted inputs. Throwing across all ranks.",
)


def shingles(text):
    words = WORD.findall(text.lower())
    return {tuple(words[start : start + IN_A_ROW]) for start in range(len(words) - IN_A_ROW + 1)}


def said_in(tree):
    """The texts of a module: docstrings, sentences, and the fixed parts of those that are put together."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else " _value_ " for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def ours():
    """Where our sequences of words stand, those that are looked for left out."""
    found = {}
    for file in sorted(Path(impl.__file__).parent.rglob("*.py")):
        if "tests" in file.parts:
            continue
        for text in said_in(ast.parse(file.read_text())):
            for phrase in LOOKED_FOR:
                text = text.replace(phrase, " _looked_for_ ")
            found.update(dict.fromkeys(shingles(text), file.name))
    return found


def theirs():
    """The texts of torch's that ours could be taken from; literals that stand beside each other are one."""
    root = Path(torch.__file__).parent
    for folder in ("nn/parallel", "distributed", "optim"):
        for file in sorted((root / folder).rglob("*.py")):
            yield re.sub(r'"\s*[rf]?"', "", file.read_text(errors="replace"))


def test_no_seven_words_in_a_row_are_torchs():
    found = ours()
    known = set(found)
    taken = {sequence for text in theirs() for sequence in known & shingles(text)}
    assert {f"{found[sequence]}: {' '.join(sequence)}" for sequence in taken} == set()


def test_every_phrase_that_may_be_torchs_is_said():
    said = "\n".join(
        text
        for file in Path(impl.__file__).parent.rglob("*.py")
        if "tests" not in file.parts
        for text in said_in(ast.parse(file.read_text()))
    )
    assert [phrase for phrase in LOOKED_FOR if phrase not in said] == []
