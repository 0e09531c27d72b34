"""The thread that tells where a process is."""

from tf_config.launcher.settings import PROGRESS_VARIABLE

PROGRAM = """
import threading, time
from strategies.diagnostics import progress

begun = threading.Event()

def look(thread):
    begun.set()
    time.sleep(1)
    print("looked to the end", flush=True)
    return ""

progress.where = look
progress.start_progress_reports()
begun.wait()
"""


def test_a_process_ends_when_nobody_looks_at_its_frames_any_more(forked):
    (forked.directory / "program.py").write_text(PROGRAM)
    forked.environ[PROGRESS_VARIABLE] = str(forked.directory / "progress")
    process = forked.popen([forked.python, str(forked.directory / "program.py")])
    code, output = forked.finish(process, timeout=60)
    assert code == 0, output
    assert "looked to the end" in output
