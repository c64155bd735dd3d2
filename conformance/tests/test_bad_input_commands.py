"""Bad input to every command of the suite: status 2, a sentence with the remedy, no traceback, no file touched."""

import shutil
import subprocess
from pathlib import Path

import pytest

from conformance.__main__ import main
from reports.records import Writer, identity
from reports.tests.refusing import refused

from . import fakes, made_records

pytestmark = pytest.mark.slow

SUBJECTS = {
    "raises": "raise RuntimeError('out of order')",
    "ends": "import sys; sys.exit(0)",
    "misspelt": "def (",
    "odd": "three = 3\ndef function(): pass\n",
    "nameless": "from conformance.subjects import Subject\nsubject = Subject('', '1', {})\n",
    "listed": "from conformance.subjects import Subject\nsubject = Subject('a', '1', [])\n",
    "test_broken": "raise RuntimeError('this check cannot be read')",
}


@pytest.fixture(scope="module")
def laid(tmp_path_factory):
    """A folder with everything that the lines below name."""
    place = fakes.lay(tmp_path_factory.mktemp("bad"))
    for name, text in SUBJECTS.items():
        (place / f"{name}.py").write_text(text)
    (place / "in_the_way").write_text("a file")
    (place / "folder").mkdir()
    (place / "incomplete.toml").write_text('[[deviation]]\nclause = "FAKE-001"\n')
    (place / "elsewhere.toml").write_text('subject = "somebody"\n')
    (place / "unknown.toml").write_text('[[deviation]]\nclause = "JOIN-999"\nreason = "a slip"\n')
    (place / "bytes.toml").write_bytes(b"\xff\xfe")
    whole = made_records.lay(place / "whole.jsonl").read_text()
    lines = whole.splitlines()
    texts = {
        "empty": "", "prose": "hello\n", "list": "[1]\n", "foreign": '{"a": 1}\n{"b": 2}\n', "deep": "[" * 100_000,
        "long": '{"line": "header", "schema": ' + "9" * 6000 + "}\n", "torn": "\n".join(lines[:3]) + "\n",
        "altered": "\n".join([*lines[:2], *lines[3:]]) + "\n", "nan": whole.replace('"seconds": 0.1', '"seconds": NaN'),
        "later": whole.replace('"schema": 1', '"schema": 2'), "typed": whole.replace('"world": 2', '"world": "two"'),
        "exploded": whole.replace('"outcome": "passed"', '"outcome": "exploded"'),
        "unasked": whole.replace('"subjects": [', '"subjects": 3, "theirs": ['),
    }  # fmt: skip
    for name, text in texts.items():
        (place / f"{name}.jsonl").write_text(text)
    (place / "bytes.jsonl").write_bytes(b"\xff\xfe\x00")
    with Writer(place / "perf.jsonl", identity("perf", ["perf"])):
        pass
    (place / "findings.json").write_text('{"mine": 1}')
    (place / "deep.json").write_text("[" * 100_000)
    return place


@pytest.fixture
def place(laid, monkeypatch):
    monkeypatch.chdir(laid)
    monkeypatch.syspath_prepend(laid)
    return laid


FAKE = "run --subject fake_subject:subject --checks test_fake.py --out out"

RUN = [
    ("--subject nobody", "unknown subject 'nobody': use one of impl, torch, or package.module:attribute"),
    ("--subject no_such_package:subject", "cannot be loaded: ModuleNotFoundError"),
    ("--subject fake_subject:absent", "cannot be loaded: AttributeError"),
    ("--subject fake_subject:", "or package.module:attribute"),
    ("--subject :subject", "or package.module:attribute"),
    ("--subject ..up:subject", "subject '..up:subject' cannot be loaded"),
    ("--subject odd:three", "is a int, not a conformance.subjects.Subject"),
    ("--subject odd:function", "is a function, not a conformance.subjects.Subject"),
    ("--subject nameless:subject", "a subject needs a name"),
    ("--subject listed:subject", "names and lacks of subject a must be mappings"),
    ("--subject raises:subject", "cannot be loaded: RuntimeError: out of order"),
    ("--subject ends:subject", "cannot be loaded: SystemExit"),
    ("--subject misspelt:subject", "cannot be loaded: SyntaxError"),
    ("--subject ''", "has an empty part; separate several by single commas"),
    ("--subject torch,", "has an empty part"),
    ("--subject torch,,impl", "has an empty part"),
    ("--subject fake_subject:other,fake_subject:twin", "both called 'other'; rename one"),
    ("--subject fake_subject:torch_in_disguise", "is called 'torch', as the suite's own is; give it another name"),
    ("--subject torch,torch", "subject 'torch' is named more than once; name it once"),
    ("--select NOPE-*", "clause pattern 'NOPE-*' matches nothing; `python -m conformance clauses` lists all"),
    ("--select FAKE-001,NOPE-001", "clause pattern 'NOPE-001' matches nothing"),
    ("--select ''", "has an empty part"),
    ("--worlds 0", "world '0' is not a whole number above 0; give for example 1,2,3,4"),
    ("--worlds 2,-1", "world '-1'"),
    ("--worlds two", "world 'two'"),
    ("--worlds ''", "has an empty part"),
    ("--worlds 1e3", "world '1e3'"),
    ("--worlds ²", "world '²'"),
    ("--worlds 100000", "more than the 256 ranks"),
    ("--backend carrier_pigeon", "carrier_pigeon"),
    ("--backend ''", "not registered with torch.distributed"),
    ("--backend no_such_package:pigeon", "no_such_package"),
    ("--backend raises:pigeon", "cannot be loaded: RuntimeError"),
    ("--backend ends:pigeon", "cannot be loaded: SystemExit"),
    ("--deadline soon", "deadline 'soon' is not a number of seconds above 0"),
    ("--deadline -1", "deadline '-1'"),
    ("--deadline nan", "deadline 'nan'"),
    ("--deadline inf", "deadline 'inf'"),
    ("--jobs none", "number of jobs 'none' is not a whole number above 0; give for example 2"),
    ("--jobs 0", "number of jobs '0'"),
    ("--jobs 2,3", "number of jobs '2,3'"),
    ("--jobs 1.5", "number of jobs '1.5'"),
    ("--tier huge", "there is no tier 'huge'; there are quick and full"),
    ("--schedule a,b", "give each rank's inputs, for example 0,1"),
    ("--schedule ''", "give each rank's inputs"),
    ("--schedule 1,2 --worlds 3", "leave --worlds out"),
    ("--deviations absent.toml", "there is no file of deviations at absent.toml; correct the path"),
    ("--deviations unknown.toml", "unknown.toml: deviation 1: there is no clause 'JOIN-999'"),
    ("--deviations folder", "folder: cannot be read"),
    ("--deviations bytes.toml", "bytes.toml: cannot be read"),
    ("--deviations incomplete.toml", "reason is missing"),
    ("--deviations elsewhere.toml", "is about subject 'somebody', which is not in this run"),
    ("--checks absent", "there are no checks at absent"),
    ("--out in_the_way", "cannot write into in_the_way: File exists; choose another folder with --out"),
    ("--out in_the_way/below", "cannot write into in_the_way/below: Not a directory"),
    ("--resume sometimes", "invalid choice: 'sometimes'"),
    ("--nonsense", "unrecognized arguments: --nonsense"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "says"), RUN)
def test_what_a_run_cannot_have_is_refused(place, capsys, words, says):
    refused(main, f"{FAKE} {words}", says, place, capsys)


RECORDS = [
    ("absent", "cannot be read"), ("empty", "is no record file"), ("prose", "line 1 is no JSON"),
    ("list", "line 1 is no JSON object"), ("foreign", "is no record file"), ("deep", "nests too deep"),
    ("long", "is no JSON"), ("bytes", "cannot be read"), ("torn", "has no footer"), ("altered", "the file was altered"),
    ("nan", "NaN is no number of JSON"), ("later", "use the version of the program that wrote it"),
    ("typed", "world is 'two', which is no int"), ("exploded", "'exploded' is not a valid Outcome"),
    ("unasked", "was it written by another version of the suite?"), ("perf", "is a record of perf, not of conformance"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "says"), RECORDS)
@pytest.mark.parametrize("command", ["page {}.jsonl --out out", "compare {}.jsonl whole.jsonl --out out"])
def test_what_is_no_record_of_the_suite_is_refused_and_named(place, capsys, command, name, says):
    err = refused(main, command.format(name), says, place, capsys)
    assert f"{name}.jsonl" in err


OTHERS = [
    ("", "the following arguments are required"),
    ("nonsense", "invalid choice: 'nonsense'"),
    ("clauses --select NOPE-*", "clause pattern 'NOPE-*' matches nothing"),
    ("clauses --select ''", "clause pattern '' matches nothing"),
    ("show NOPE-001", "there is no clause 'NOPE-001'; `python -m conformance clauses` lists all"),
    ("show ../x", "there is no clause '../x'"),
    ("repro NOPE-001", "there is no clause 'NOPE-001'"),
    ("repro JOIN-001", "has no listed deviation of torch"),
    ("repro ZERO-022 --subject impl", "scripts show what others break"),
    ("repro ZERO-022 --subject torch,megatron", "scripts are written for one at a time, for example torch"),
    ("repro ZERO-022 --out in_the_way", "cannot write in_the_way"),
    ("page whole.jsonl --out in_the_way", "choose another folder with --out"),
    ("page folder --out out", "cannot be read"),
    ("compare whole.jsonl whole.jsonl --out in_the_way", "choose another folder with --out"),
    ("hosts", "say what to run on the hosts"),
    ("hosts --hosts 0 -- x.py", "number of hosts '0': give a whole number from 1 on"),
    ("hosts --hosts 99999 -- x.py", "from 1 to 64 can be had on one machine"),
    ("hosts --rate fast -- x.py", "write it like 100kbit"),
    ("hosts --delay long -- x.py", "write it like 100us"),
    ("hosts --uplink 1 -- x.py", "write it like 100kbit"),
    ("hosts --racks 3 --hosts 2 -- x.py", "every rack needs a host"),
    ("hosts --racks x -- x.py", "number of racks 'x'"),
    ("hosts --ranks none -- x.py", "number of ranks 'none'"),
    ("hosts -- nosuch.py", "there is no script 'nosuch.py' to run on the hosts"),
    ("hosts -- -m nosuch.module", "there is no module 'nosuch.module' to run on the hosts"),
    ("defects --select NOPE", "matches no planted defect; give an id such as ddp/* or a clause"),
    ("defects --select ''", "has an empty part"),
    ("defects --jobs none", "number of jobs 'none'"),
    ("defects --defects absent", "there is no folder of defects at absent"),
    ("defects --defects in_the_way", "there is no folder of defects at in_the_way"),
    ("defects --defects folder", "one is a function with @defect in AREA/MODULE.py"),
    ("defects --checks absent", "there is no folder of checks at absent"),
    ("board --columns nobody --out out", "there is no column 'nobody'; there are"),
    ("board --columns '' --out out", "there is no column ''"),
    ("board --columns torch --jobs 0 --out out", "number of jobs '0'"),
    ("board --columns torch --out in_the_way", "choose another folder with --out"),
    ("board --minutes x --out out", "minutes 'x' is not a number above 0"),
    ("board --show --out nowhere", "nothing of this has been judged in nowhere yet; leave --show out to judge it now"),
    ("protocol --minutes soon", "minutes 'soon' is not a number above 0; give for example 10"),
    ("protocol --minutes -1", "minutes '-1'"),
    ("protocol --minutes nan", "minutes 'nan'"),
    ("protocol --minutes inf", "minutes 'inf'"),
    ("protocol --jobs none", "number of jobs 'none'"),
    ("protocol --program nope", "no program is called 'nope'; there are"),
    ("protocol --worlds 7", "explored at worlds 2 and 3"),
    ("protocol --inputs a,b", "number of inputs 'a'"),
    ("protocol --inputs 9,9,9,9", "give for example 1,2 or 0,1,3"),
    ("protocol --defect nope", "matches no planted defect"),
    ("protocol --defect join/* --subject torch --program plain", "plants mistakes in impl: leave --subject torch out"),
    ("protocol --subject nobody", "unknown subject 'nobody'"),
    ("protocol --subject torch --program 'ddp*'", "program 'ddp' cannot be explored with torch"),
    ("protocol --subject torch", "for example --program plain"),
    ("faults --subject nobody --select SIGKILL/* --out out", "unknown subject 'nobody'"),
    ("faults --select SIGKILL/* --out in_the_way", "choose another folder with --out"),
    ("faults --select nope", "no cell meets 'nope'"),
    ("faults --tenth --seed x --out out", "seed 'x' is not a whole number; give for example 7"),
    ("faults --seed 7 --out out", "a seed draws a tenth of the cells: give --tenth (TENTH=1), too"),
    ("faults --jobs 0 --out out", "number of jobs '0' is not a whole number above 0; give for example 2"),
    ("soak --subject nobody --out out", "unknown subject 'nobody'"),
    ("soak --subject fake_subject:subject --out out", "does not provide DistributedDataParallel, Zero"),
    ("soak --out in_the_way", "choose another folder with --out"),
    ("soak --seed x --out out", "seed 'x' is not a whole number"),
    ("soak --minutes -5 --out out", "minutes '-5' is not a number above 0"),
    ("soak --minutes nan --out out", "minutes 'nan'"),
    ("soak --jobs 0 --out out", "number of jobs '0'"),
    ("soak --iterations 0 --out out", "number of iterations '0' is not a whole number above 0; give for example 2"),
    ("soak --iterations 35 --out out", "35 iterations end within the warm-up"),
    ("soak --constructions 2 --out out", "nothing could be compared; give 9 or more"),
    ("explore --subject nobody --out out", "unknown subject 'nobody'"),
    ("explore --subject '' --out out", "has an empty part"),
    ("explore --subject fake_subject:subject --out out", "does not provide DistributedDataParallel, which"),
    ("explore --minutes soon --out out", "minutes 'soon'"),
    ("explore --minutes -1 --out out", "minutes '-1'"),
    ("explore --minutes nan --out out", "minutes 'nan'"),
    ("explore --seed abc --out out", "seed 'abc' is not a whole number"),
    ("explore --seed -1 --out out", "seed '-1'"),
    ("explore --jobs none --out out", "number of jobs 'none'"),
    ("explore --subject torch --out in_the_way", "choose another folder with --out"),
    ("explore --program absent.json", "No such file"),
    ("explore --program nonsense", "--program nonsense: Expecting value"),
    ("explore --program []", "a program is an object of choices"),
    ("""explore --program '{"wings": "two"}'""", "there are no such choices"),
    ("""explore --program '{"layers": "many"}'""", "layers is 'many'; give a whole number"),
    ("""explore --program '{"counts": 3}'""", "give a list of whole numbers"),
    ("explore --program deep.json", "nests too deep"),
    ("power --mutants none", "number of mutants 'none'"),
    ("power --mutants 0", "number of mutants '0'"),
    ("power --seed abc", "seed 'abc'"),
    ("power --jobs none", "number of jobs 'none'"),
    ("power --cases none", "number of cases 'none'"),
    ("power --explore soon", "--explore 'soon' is not a number of minutes"),
    ("power --mutant nope", "there is no mutant 'nope' of impl as it is now; `--list` prints a draw"),
    ("power --mutant nope --written mine.toml", "give one of the two"),
    ("power --out in_the_way", "choose another folder with --out"),
    ("power --out folder --history in_the_way", "choose another folder with --history"),
    ("gpu nonsense", "invalid choice: 'nonsense'"),
    ("gpu streams --backend gloo", "say where the findings go: --out FILE"),
    ("gpu streams --backend gloo --only nope --out f.json", "there is no case 'nope'; there are"),
    ("gpu streams --backend gloo --only DDP,nope --out f.json", "there is no case 'nope'; there are"),
    ("gpu streams --backend gloo --world none --out f.json", "world 'none'"),
    ("gpu sharing --backend '' --out f.json", "has an empty part"),
    ("gpu memory --backend nobody --out f.json", "not registered"),
    ("gpu streams --backend gloo --out in_the_way/f.json", "cannot write into in_the_way"),
    ("gpu streams --backend gloo --out findings.json", "holds no findings"),
    ("gpu streams --backend gloo --out deep.json", "holds no findings"),
    ("gpu streams --backend gloo --out folder", "holds no findings"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "says"), OTHERS)
def test_what_the_other_commands_cannot_have_is_refused(place, capsys, line, says):
    refused(main, line, says, place, capsys)


def test_a_check_that_cannot_be_read_is_named_and_nothing_is_judged(place, capfd):
    assert main(["run", "--subject", "fake_subject:subject", "--checks", "test_broken.py", "--out", "out-checks"]) == 2
    assert "this check cannot be read" in capfd.readouterr().err


def test_more_ranks_than_there_are_gpus_is_bad_input(place, capsys):
    import torch

    words = f"{FAKE} --backend nccl --worlds {torch.cuda.device_count() + 1}"
    refused(main, words, "nccl", place, capsys)


SWITCHES = [
    ("TENTH", "faults", "--tenth"), ("STRICT", "faults", "--no-strict"),
    ("RESUME", "conformance", "--resume"), ("POISON", "conformance", "--poison"),
    ("POISON", "conformance-full", "--poison"),
]  # fmt: skip


def said_by_make(line):
    """What make would run, or says."""
    words = ["make", "-n", *line.split(), "SETUP=0", "PYTHON=python3"]
    return subprocess.run(words, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300)


@pytest.mark.skipif(shutil.which("make") is None, reason="not run: no make")
def test_make_takes_1_and_0_for_what_is_on_or_off_and_nothing_else():
    for name, command, option in SWITCHES:
        given = {value: said_by_make(f"{command} {name}={value}") for value in ("1", "0", "no")}
        has = {value: option in done.stdout.split() for value, done in given.items()}
        assert has == {"1": name != "STRICT", "0": name == "STRICT", "no": False}, name
        assert [given["1"].returncode, given["0"].returncode, given["no"].returncode] == [0, 0, 2]
        assert f"{name} is 1 or 0, not 'no'" in given["no"].stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="not run: no make")
@pytest.mark.parametrize("command", ["conformance", "conformance-full", "perf", "nightly", "dashboard", "gpu", "board",
                                     "explore", "power", "faults", "soak"])  # fmt: skip
def test_make_writes_where_out_says(command):
    assert "--out 'elsewhere'" in said_by_make(f"{command} OUT=elsewhere").stdout
