"""Detect a voice by the shared libraries, without rammer."""

import ctypes
import math

vad, rammer = ctypes.CDLL("./shared/libvad.so"), ctypes.CDLL("./shared/librammer.so")
program, speech = ctypes.c_void_p(), ctypes.c_float()
tone = (ctypes.c_float * 512)(*(0.5 * math.sin(0.2 * n) for n in range(512)))
inputs, outputs = ((ctypes.c_void_p * 1)(ctypes.addressof(array)) for array in (tone, speech))
assert not rammer.rammer_open(ctypes.byref(ctypes.c_char.in_dll(vad, "vad_model")), None, ctypes.byref(program))
for frame in range(20):
    assert not rammer.rammer_run(program, inputs, outputs)
    print(f"frame {frame}: {speech.value:.2f}")
rammer.rammer_close(program)
