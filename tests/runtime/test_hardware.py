"""The kind of hardware that plans are remembered for: the same on machines of one kind, whatever they are called."""

import os

import pytest
import torch

from hedgerow.platform.common.hardware import cpu_model, hardware

INTEL = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R)  Processor @ 2.60GHz
stepping\t: 8
cpu MHz\t\t: 2599.998

processor\t: 1
model name\t: of the second core
"""
ARM = """processor\t: 0
BogoMIPS\t: 243.75
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1
"""
POWER = "processor\t: 0\ncpu\t\t: POWER9, altivec supported\nclock\t\t: 3000MHz\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (INTEL, "Intel(R) Xeon(R) Processor @ 2.60GHz cpu family 6 model 143 stepping 8"),
        (INTEL.replace("2599.998", "1200.0"), "Intel(R) Xeon(R) Processor @ 2.60GHz cpu family 6 model 143 stepping 8"),
        (ARM, "CPU implementer 0x41 CPU architecture 8 CPU variant 0x3 CPU part 0xd0c CPU revision 1"),
        (POWER, "POWER9, altivec supported"),
    ],
)
def test_a_cpu_is_named_by_its_model(tmp_path, text, name, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    (tmp_path / "cpuinfo").write_text(text)
    assert cpu_model(tmp_path / "cpuinfo") == name


@pytest.mark.parametrize("text", [None, "", "no colon\n", "model name\t: \n", "\x00\xff"])
def test_a_system_that_names_no_model_still_has_an_answer(tmp_path, text, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert cpu_model(tmp_path / "cpuinfo")


def test_on_a_gpu_its_model_and_memory_are_part_of_the_kind(monkeypatch):
    assert hardware(torch.device("cpu")) == {"cpu": cpu_model(), "cores": os.cpu_count()}
    properties = type("Properties", (), {"total_memory": 85 * 10**9})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    found = hardware(torch.device("cuda"))
    assert (found["gpu"], found["gpu_memory"]) == ("NVIDIA H100 80GB HBM3", 85 * 10**9)
