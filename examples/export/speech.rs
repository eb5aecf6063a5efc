//! Detect a voice from Rust, through the functions of rammer.h that this needs.
use std::ffi::{c_char, c_int, c_void, CStr};
use std::ptr::{null, null_mut};

#[repr(C)]
struct Model([u8; 0]);

extern "C" {
    static vad_model: Model;
    fn rammer_open(model: *const Model, options: *const c_void, program: *mut *mut c_void) -> c_int;
    fn rammer_run(program: *mut c_void, inputs: *const *const c_void, outputs: *const *mut c_void) -> c_int;
    fn rammer_close(program: *mut c_void);
    fn rammer_text(status: c_int) -> *const c_char;
}

fn checked(status: c_int) -> Result<(), String> {
    match status {
        0 => Ok(()),
        _ => Err(unsafe { CStr::from_ptr(rammer_text(status)) }.to_string_lossy().into_owned()),
    }
}

struct Detector(*mut c_void);

impl Detector {
    fn open() -> Result<Self, String> {
        let mut program = null_mut();
        checked(unsafe { rammer_open(&vad_model, null(), &mut program) })?;
        Ok(Self(program))
    }

    fn speech(&mut self, samples: &[f32; 512]) -> Result<f32, String> {
        let mut found = 0f32;
        let inputs = [samples.as_ptr().cast()];
        let outputs = [(&mut found as *mut f32).cast()];
        checked(unsafe { rammer_run(self.0, inputs.as_ptr(), outputs.as_ptr()) })?;
        Ok(found)
    }
}

impl Drop for Detector {
    fn drop(&mut self) {
        unsafe { rammer_close(self.0) }
    }
}

fn main() -> Result<(), String> {
    let mut detector = Detector::open()?;
    let tone: [f32; 512] = std::array::from_fn(|n| 0.5 * (0.2 * n as f32).sin());
    for frame in 0..20 {
        println!("frame {frame}: {:.2}", detector.speech(&tone)?);
    }
    Ok(())
}
