//! What is held of a device while it is open, each given back once.

use super::check;
use crate::CudaError;
use cudarc::driver::sys;
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

/// Host memory that small uploads pass through.
pub(super) const STAGING_BYTES: usize = 4 << 20;

/// The primary context of a device, held.
pub(super) struct Context {
    device: sys::CUdevice,
    handle: sys::CUcontext,
    /// A number that no other holding has: the driver may give a handle again that it has given before.
    number: u64,
}

impl Context {
    pub fn retain(device: sys::CUdevice) -> Result<Context, CudaError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut handle = null_mut();
        // SAFETY: the handle is a local, the device is the driver's.
        check("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&mut handle, device) })?;
        Ok(Context { device, handle, number: NEXT.fetch_add(1, Ordering::Relaxed) })
    }

    /// Makes it the one that this thread's calls go to. The driver is asked only where the last one was another: nothing else in this
    /// process changes a thread's context.
    pub fn enter(&self) -> Result<(), CudaError> {
        thread_local!(static LAST: Cell<u64> = const { Cell::new(0) });
        if LAST.get() != self.number {
            // SAFETY: the context is held.
            check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.handle) })?;
            LAST.set(self.number);
        }
        Ok(())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once, released once. What it still holds goes with it when nobody else holds it.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// The one stream.
pub(super) struct Stream(pub sys::CUstream);

impl Stream {
    /// A new one of the current context.
    pub fn new() -> Result<Stream, CudaError> {
        let mut stream = null_mut();
        // SAFETY: the stream is a local; flags 0 are the defaults.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut stream, 0) })?;
        Ok(Stream(stream))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { sys::cuStreamDestroy_v2(self.0) };
    }
}

/// Host memory that the device reads by itself, so that an upload need not wait for the work before it.
pub(super) struct Staging {
    pub memory: *mut u8,
    pub used: usize,
}

impl Staging {
    /// For the current context.
    pub fn new() -> Result<Staging, CudaError> {
        let mut memory = null_mut();
        // SAFETY: the memory is a local; flags 0 are the defaults.
        check("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&mut memory, STAGING_BYTES, 0) })?;
        Ok(Staging { memory: memory.cast(), used: 0 })
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // SAFETY: allocated once, freed once, by which time no copy from it is under way.
        unsafe { sys::cuMemFreeHost(self.memory.cast()) };
    }
}
