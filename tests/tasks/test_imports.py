import subprocess
import sys


def test_importing_tasks_is_light() -> None:
    heavy = "torch transformers datasets pyarrow PIL sklearn tokenizers"
    code = f"import sys, skillgraft.tasks; print(*(set({heavy.split()}) & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == ""
