"""The installed package: the wheel contains every module, and nothing shadows the standard library."""

import subprocess
import sys
import zipfile

import pytest
from paths import ROOT
from preloaded import run_python

PACKAGES = ("algorithms", "platform", "searchspaces", "cluster", "reports")


def test_platform_of_the_standard_library_is_found_next_to_the_package():
    process = subprocess.run(
        [sys.executable, "-c", "import platform, hedgerow.cli; print(platform.system())"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() in ("Linux", "Darwin", "Windows")


def test_the_wheel_holds_every_module(tmp_path):
    build = "from setuptools.build_meta import build_wheel; import sys; print(build_wheel(sys.argv[1]))"
    source = tmp_path / "source"
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listing.stdout.split():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    process = subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=source, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    (wheel,) = tmp_path.glob("*.whl")
    contents = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}
    modules = {f"hedgerow/{file.name}" for file in ROOT.glob("*.py")}
    for package in PACKAGES:
        modules |= {f"hedgerow/{p.relative_to(ROOT).as_posix()}" for p in (ROOT / package).rglob("*.py")}
    assert contents == modules
    spaces = {f"hedgerow/{p.relative_to(ROOT).as_posix()}" for p in (ROOT / "searchspaces/spaces").glob("*.yaml")}
    assert spaces
    assert spaces <= set(zipfile.ZipFile(wheel).namelist())
    pages = {f"hedgerow/{p.relative_to(ROOT).as_posix()}" for p in (ROOT / "reports/page/template").iterdir()}
    assert pages <= set(zipfile.ZipFile(wheel).namelist())
    assert {"hedgerow/reports/demo.zip", "hedgerow/__init__.pyi"} <= set(zipfile.ZipFile(wheel).namelist())
    cluster_files = {f"hedgerow/{p.relative_to(ROOT).as_posix()}" for p in (ROOT / "cluster/files").iterdir()}
    assert cluster_files <= set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.exhaustive("processes")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_built_wheel_runs_in_an_empty_environment(version):
    """It fetches what the cache of uv does not have, such as PyTorch for this version of Python."""
    process = subprocess.run(
        [sys.executable, ".ci/smoke.py", "--python", version], cwd=ROOT, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stdout + process.stderr
    if "not tried" in process.stdout:
        pytest.skip(process.stdout)


def test_the_module_is_the_command():
    process = subprocess.run([sys.executable, "-m", "hedgerow", "--version"], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert "version" in process.stdout


def test_importing_hedgerow_is_light():
    code = "import sys, hedgerow; print([m for m in ('torch', 'ray', 'mlflow', 'torchvision') if m in sys.modules])"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"
    code = "import time; start = time.process_time(); import hedgerow; print(time.process_time() - start)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(process.stdout) < 0.1


def test_the_public_names_are_there():
    import hedgerow

    assert {name for name in dir(hedgerow) if getattr(hedgerow, name) is None} == set()
    assert {"Algorithm", "StepResult", "minimize", "run"} < set(dir(hedgerow))
    with pytest.raises(AttributeError, match="module 'hedgerow' has no attribute 'Algoritm'"):
        _ = hedgerow.Algoritm


def test_a_client_actor_imports_neither_mlflow_nor_pandas_nor_torchvision():
    code = (
        "import sys, hedgerow.platform.runtime.worker, hedgerow.platform.runtime.factory; "
        "print([m for m in ('mlflow', 'pandas', 'torchvision', 'sklearn', 'matplotlib') if m in sys.modules])"
    )
    assert run_python("-c", code).stdout.strip() == "[]"
