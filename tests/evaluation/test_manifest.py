"""What a run says it was made with."""

from __future__ import annotations

import subprocess
from pathlib import Path

from clcnn.evaluation.manifest import git_version


def test_the_commit_is_marked_where_the_package_differs_from_it(tmp_path: Path) -> None:
    package = tmp_path / "src"
    package.mkdir()
    assert git_version(package) is None

    def git(*words: str) -> str:
        author = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(
            ["git", *author, *words], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    (package / "code.py").write_text("x = 1\n")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "one")
    commit = git("rev-parse", "--short=12", "HEAD")
    assert git_version(package) == commit
    (tmp_path / "results.csv").write_text("what a run wrote")
    assert git_version(package) == commit
    (package / "code.py").write_text("x = 2\n")
    assert git_version(package) == f"{commit}-dirty"
    git("checkout", "--quiet", ".")
    (package / "new.py").write_text("")
    assert git_version(package) == f"{commit}-dirty"
