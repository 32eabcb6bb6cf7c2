//! A machine whose launches somebody looks on at: to count or to time them, or to do harm that a check must find.

use super::{Arg, Driver, Launch, Matmul, Module, Recorded, Unit};
use crate::CudaError;
use std::sync::Arc;

/// Somebody who stands between whoever launches, or takes the time, and the machine.
pub trait Onlooker: Send + Sync {
    /// Comes in the place of every launch of `kernel`. `launch` does it on `driver`, as often as it is called: what it writes must bear that.
    ///
    /// **Errors** those of `launch`, or its own.
    fn look_on(
        &self,
        driver: &dyn Driver,
        kernel: &str,
        args: &[Arg],
        launch: &mut dyn FnMut() -> Result<(), CudaError>,
    ) -> Result<(), CudaError>;

    /// Comes in the place of taking the time of `work`; the machine's own time, unless it says otherwise.
    ///
    /// **Errors** those of `work`, [`CudaError::Call`].
    fn time_ms(
        &self,
        driver: &dyn Driver,
        work: &mut dyn FnMut() -> Result<(), CudaError>,
    ) -> Result<Option<f32>, CudaError> {
        driver.time_ms(work)
    }
}

/// A machine with an onlooker; all else goes straight to it. Of recorded
/// work the onlooker sees the launches when they are put down, and nothing when they are replayed.
pub(crate) struct Watched {
    pub driver: Arc<dyn Driver>,
    pub onlooker: Arc<dyn Onlooker>,
}

// SAFETY: memory is that of the machine behind.
unsafe impl Driver for Watched {
    fn name(&self) -> String {
        self.driver.name()
    }

    fn memory(&self) -> Result<(usize, usize), CudaError> {
        self.driver.memory()
    }

    fn taken(&self, bytes: usize) -> usize {
        self.driver.taken(bytes)
    }

    fn allocate(&self, what: &str, bytes: usize) -> Result<u64, CudaError> {
        self.driver.allocate(what, bytes)
    }

    fn free(&self, address: u64) {
        self.driver.free(address);
    }

    fn upload(&self, to: u64, from: &[u8]) -> Result<(), CudaError> {
        self.driver.upload(to, from)
    }

    fn download(&self, to: &mut [u8], from: u64) -> Result<(), CudaError> {
        self.driver.download(to, from)
    }

    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), CudaError> {
        self.driver.copy(to, from, bytes)
    }

    fn zero(&self, to: u64, bytes: usize) -> Result<(), CudaError> {
        self.driver.zero(to, bytes)
    }

    fn load(&self, unit: &Unit) -> Result<Module, CudaError> {
        self.driver.load(unit)
    }

    unsafe fn launch(&self, module: Module, kernel: &str, launch: Launch, args: &[Arg]) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        let mut run = || unsafe { self.driver.launch(module, kernel, launch, args) };
        self.onlooker.look_on(&*self.driver, kernel, args, &mut run)
    }

    unsafe fn matmul(&self, product: &Matmul) -> Result<bool, CudaError> {
        // SAFETY: the caller's promise.
        unsafe { self.driver.matmul(product) }
    }

    fn synchronize(&self) -> Result<(), CudaError> {
        self.driver.synchronize()
    }

    fn time_ms(&self, work: &mut dyn FnMut() -> Result<(), CudaError>) -> Result<Option<f32>, CudaError> {
        self.onlooker.time_ms(&*self.driver, work)
    }
    fn record(&self, work: &mut dyn FnMut() -> Result<(), CudaError>) -> Result<Recorded, CudaError> {
        self.driver.record(work)
    }

    unsafe fn replay(&self, recorded: Recorded) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        unsafe { self.driver.replay(recorded) }
    }

    fn forget(&self, recorded: Recorded) {
        self.driver.forget(recorded);
    }
}
