# SPDX-License-Identifier: Apache-2.0
"""CPythons that are newer than those of the machine: from Debian's development release, in a folder of the
user's cache (XDG_CACHE_HOME), so that every clone finds them. Needs root, `unshare` and a machine with apt.
About 1 GB; it is made once, in a minute or two."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from steps import ROOT, run

VERSIONS = ("3.14", "3.15")
FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tenon/debian-sid"
PACKAGES = ["ca-certificates", "g++"]
PACKAGES += [f"python{version}-{part}" for version in VERSIONS for part in ("venv", "dev")]
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
COPIED = ("/etc/resolv.conf", "/etc/hosts", "/etc/xdg/pip", "/etc/ssl/certs/ca-certificates.crt")

# Its arguments: the folder with the system, a folder of this machine, a command. The mounts are in a
# namespace of the command's own.
ENTER = """
system=$1
for folder in /proc /dev "$2" ${PIP_FIND_LINKS:-}; do
  if [ -d "$folder" ]; then
    mkdir -p "$system$folder"
    mount --rbind "$folder" "$system$folder"
  fi
done
shift 2
exec chroot "$system" sh -c 'cd "$0" && exec "$@"' "$PWD" "$@"
"""


def command(version):
    """The words that run this CPython in the current folder, with this tree in sight; None where it
    cannot be had."""
    if version not in VERSIONS or not is_made():
        return None
    enter = ["unshare", "--mount", "sh", "-ec", ENTER, "sh", FOLDER / "system", ROOT]
    return [*map(str, enter), f"/usr/bin/python{version}"]


def is_made():
    """Makes the system if it is not there yet. False where it cannot be made or entered; the log says why."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "chroot"))):
        return False
    if (FOLDER / "made").exists():
        return True
    if not all(map(shutil.which, ("apt-get", "dpkg"))):
        return False
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return (FOLDER / "made").exists() or make()


def mirror():
    """The address from which apt of this machine gets Debian; None on another distribution."""
    fields = "$(ORIGIN) $(COMPONENT) $(REPO_URI)"
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", fields, "Created-By: Packages"],
        capture_output=True,
        text=True,
    )
    found = [line.split() for line in listed.stdout.splitlines()]
    return next((words[2] for words in found if words[:2] == ["Debian", "main"]), None)


def make():
    address = mirror()
    if address is None:
        return False
    for path in [FOLDER / "system", *FOLDER.glob("making-*")]:  # left by one that was interrupted
        shutil.rmtree(path, ignore_errors=True)
    # What an interrupted making has started may still write to its folder. So each has one of its own.
    system = Path(tempfile.mkdtemp(prefix="making-", dir=FOLDER))
    system.chmod(0o755)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        script = f"""
cd {folder}
apt-get download debootstrap || {{ apt-get update; apt-get download debootstrap; }}
dpkg -x debootstrap*.deb .
DEBOOTSTRAP_DIR={folder}/usr/share/debootstrap sh usr/sbin/debootstrap --variant=minbase --keyring={KEYS} \\
  --include={",".join(PACKAGES)} sid {system} {address}
"""
        if (
            run("make a Debian with newer CPythons", "unshare", "--mount", "sh", "-ec", script).returncode
            != 0
        ):
            shutil.rmtree(system, ignore_errors=True)
            return False
    for path in COPIED:
        with contextlib.suppress(FileNotFoundError):
            to = Path(f"{system}{path}")
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(path, to, dirs_exist_ok=True) if os.path.isdir(path) else shutil.copy(path, to)
    system.rename(FOLDER / "system")
    (FOLDER / "made").touch()
    return True
