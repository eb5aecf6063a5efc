from rammer.testing import VDeviceConformance


class TestToy(VDeviceConformance):
    vdevice = "toy"
    unsupported = {}  # "test_fine_*": "tiles synchronise globally"       (permanent)
    expected_failures = {}  # "test_profile_*": "no timer yet, issue 12"  (temporary, strict)
