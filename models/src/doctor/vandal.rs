//! Faults that are planted, for tests: what a check finds when a machine is broken.

use ragen_cuda::CudaError;
use ragen_cuda::driver::{Arg, Driver, Onlooker};

/// Changes a number that a kernel has just written, and has its own idea of time.
pub(super) struct Vandal {
    /// The kernel that goes astray.
    pub kernel: &'static str,
    /// Its argument in which the first number is changed; where that is a null pointer, in the next.
    pub arg: usize,
    /// What everything takes; `None` is the machine's own time.
    pub milliseconds: Option<f32>,
}

impl Onlooker for Vandal {
    fn look_on(
        &self,
        driver: &dyn Driver,
        kernel: &str,
        args: &[Arg],
        launch: &mut dyn FnMut() -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        launch()?;
        let written = args[self.arg.min(args.len())..].iter().find_map(|arg| match arg {
            Arg::Address(address) if *address > 0 => Some(*address),
            _ => None,
        });
        if let Some(address) = written.filter(|_| kernel == self.kernel) {
            let mut number = [0; 2];
            driver.download(&mut number, address)?;
            // The lower half of a float, all of a bf16: seen in either, and still a number.
            number[1] ^= 0x3f;
            driver.upload(address, &number)?;
        }
        Ok(())
    }

    fn time_ms(
        &self,
        driver: &dyn Driver,
        work: &mut dyn FnMut() -> Result<(), CudaError>,
    ) -> Result<Option<f32>, CudaError> {
        let time = driver.time_ms(work)?;
        Ok(self.milliseconds.or(time))
    }
}
