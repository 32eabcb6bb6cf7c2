//! Recorded work: the calls themselves.

use super::Emulator;
use crate::CudaError;
use crate::driver::{Arg, Driver, Launch, Matmul, Module};

/// A call that was put down.
pub enum Step {
    Launch { module: Module, kernel: String, launch: Launch, args: Vec<Arg> },
    Matmul(Matmul),
    Copy { to: u64, from: u64, bytes: usize },
    Zero { to: u64, bytes: usize },
}

impl Step {
    /// Does it, with all the checks of the call.
    ///
    /// # Safety
    /// As for [`Driver::replay`].
    pub unsafe fn run(&self, emulator: &Emulator) -> Result<(), CudaError> {
        match self {
            // SAFETY: the caller's promise.
            Step::Launch { module, kernel, launch, args } => unsafe { emulator.launch(*module, kernel, *launch, args) },
            // SAFETY: the caller's promise.
            Step::Matmul(product) => unsafe { emulator.matmul(product) }.map(drop),
            &Step::Copy { to, from, bytes } => emulator.copy(to, from, bytes),
            &Step::Zero { to, bytes } => emulator.zero(to, bytes),
        }
    }
}

/// The gate while it is shut; opened again however the recorded work ends.
pub struct Open<'a> {
    emulator: &'a Emulator,
    ended: bool,
}

impl<'a> Open<'a> {
    pub fn begin(emulator: &'a Emulator) -> Result<Self, CudaError> {
        emulator.gate.shut()?;
        Ok(Open { emulator, ended: false })
    }

    /// What was put down.
    pub fn end(mut self) -> Result<Vec<Step>, CudaError> {
        self.finish()
    }

    fn finish(&mut self) -> Result<Vec<Step>, CudaError> {
        self.ended = true;
        let steps = std::mem::take(&mut *self.emulator.steps());
        let (returned, outcome) = self.emulator.gate.open();
        returned.into_iter().for_each(|address| self.emulator.free(address));
        outcome.map(|()| steps)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.finish();
        }
    }
}
