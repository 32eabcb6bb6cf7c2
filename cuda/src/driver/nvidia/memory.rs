//! Device memory: from the device's pool, in the order of the stream, or where it has none from the driver.

use super::check;
use crate::CudaError;
use cudarc::driver::sys;
use std::ptr::null_mut;

/// What an allocation takes of the device's memory: small ones lie side by side at multiples of 512 bytes, large ones are whole pages of
/// 2 MiB. To be measured on a device.
pub fn taken(bytes: usize) -> usize {
    bytes.max(1).next_multiple_of(if bytes < 1 << 20 { 512 } else { 2 << 20 })
}

/// Where device memory comes from; all calls are on a thread whose context is the device's.
pub(super) struct Memory {
    stream: sys::CUstream,
    /// The device's own pool, which here keeps what is freed: the next step takes it up without asking the system.
    pool: Option<sys::CUmemoryPool>,
}

impl Memory {
    /// For a device, `pools` saying whether it has any.
    ///
    /// **Errors** [`CudaError::Call`].
    pub fn new(device: sys::CUdevice, pools: bool, stream: sys::CUstream) -> Result<Memory, CudaError> {
        if !pools {
            return Ok(Memory { stream, pool: None });
        }
        let (mut pool, mut keep) = (null_mut(), u64::MAX);
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the pool is a local; the threshold is 64 bits wide and is read during the call.
        unsafe {
            check("cuDeviceGetDefaultMemPool", sys::cuDeviceGetDefaultMemPool(&mut pool, device))?;
            check("cuMemPoolSetAttribute", sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut keep).cast()))?;
        }
        Ok(Memory { stream, pool: Some(pool) })
    }

    /// (free, total) bytes. What the pool holds and nobody uses is free: the pool gives it out, and back when memory is short.
    ///
    /// **Errors** [`CudaError::Call`].
    pub fn free_and_total(&self) -> Result<(usize, usize), CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are locals.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        let Some(pool) = self.pool else { return Ok((free, total)) };
        let get = |attribute| {
            let mut bytes = 0_u64;
            // SAFETY: both attributes are 64 bits wide.
            let result = unsafe { sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut bytes).cast()) };
            check("cuMemPoolGetAttribute", result).map(|()| bytes as usize)
        };
        use sys::CUmemPool_attribute as Attribute;
        let reserved = get(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        let used = get(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
        Ok((free + reserved.saturating_sub(used), total))
    }

    /// At least `bytes` bytes, to be used by work that comes after this on the stream.
    ///
    /// **Errors** [`CudaError::Memory`], [`CudaError::Call`].
    pub fn allocate(&self, what: &str, bytes: usize) -> Result<u64, CudaError> {
        let mut result = self.ask(bytes);
        if let (Err(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY), Some(pool)) = (result, self.pool) {
            // What the pool holds may lie in pieces that are all too small. Given back they are whole again; only now something waits.
            self.wait()?;
            // SAFETY: the pool is the device's; what is in use is left alone.
            check("cuMemPoolTrimTo", unsafe { sys::cuMemPoolTrimTo(pool, 0) })?;
            result = self.ask(bytes);
        }
        match result {
            Ok(address) => Ok(address),
            Err(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY) => {
                let (free_bytes, total_bytes) = self.free_and_total()?;
                Err(CudaError::Memory { what: what.to_string(), wanted_bytes: bytes, free_bytes, total_bytes })
            }
            Err(other) => Err(check(format_args!("allocating {bytes} bytes for {what}"), other).unwrap_err()),
        }
    }

    fn ask(&self, bytes: usize) -> Result<u64, sys::CUresult> {
        let mut address = 0;
        // SAFETY: the address is a local; the driver aligns to 256 bytes at least.
        let result = unsafe {
            match self.pool {
                Some(pool) => sys::cuMemAllocFromPoolAsync(&mut address, bytes.max(1), pool, self.stream),
                None => sys::cuMemAlloc_v2(&mut address, bytes.max(1)),
            }
        };
        if result == sys::CUresult::CUDA_SUCCESS { Ok(address) } else { Err(result) }
    }

    /// Gives memory back after all work so far, for which only a device without a pool waits.
    pub fn free(&self, address: u64) {
        // Where the device has failed there is nobody to tell and nothing left to give back.
        // SAFETY: it was allocated here, and what touches it came before on the stream.
        unsafe {
            if self.pool.is_some() {
                sys::cuMemFreeAsync(address, self.stream);
            } else if self.wait().is_ok() {
                sys::cuMemFree_v2(address);
            }
        }
    }

    /// Gives the system back what the pool has kept; all work is done.
    pub fn close(&self) {
        if let Some(pool) = self.pool {
            // SAFETY: the pool is the device's.
            unsafe { sys::cuMemPoolTrimTo(pool, 0) };
        }
    }

    fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the stream is ours.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.stream) })
    }
}
