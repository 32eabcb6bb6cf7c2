//! Recorded work: a capture of the stream, made a graph that is launched at once.

use super::{Nvidia, check};
use crate::CudaError;
use cudarc::driver::sys;
use std::ptr::null_mut;

/// A graph ready to be launched. Whoever holds the last copy destroys it.
#[derive(Clone, Copy)]
pub(super) struct Graph(sys::CUgraphExec);

// SAFETY: the driver's handles may be used by any thread.
unsafe impl Send for Graph {}

impl Graph {
    /// Starts all of it; the context is the thread's.
    pub fn launch(self, stream: sys::CUstream) -> Result<(), CudaError> {
        // SAFETY: it is not destroyed yet; what its work touches is the caller's promise.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.0, stream) })
    }

    /// Gives it back; the driver itself waits with that until a launch under way is done.
    pub fn destroy(self) {
        // SAFETY: taken from the shelf, so nobody launches it again.
        unsafe { sys::cuGraphExecDestroy(self.0) };
    }
}

/// The stream while it records; when dropped the recording is broken off.
pub(super) struct Capture<'a> {
    nvidia: &'a Nvidia,
    ended: bool,
}

impl<'a> Capture<'a> {
    /// Begins; the context is the thread's.
    ///
    /// The mode is "relaxed": the stricter ones make the driver refuse what could reach other streams, of which there are none, and with it
    /// the loading of a module or, lazily at its first launch, of a kernel. What must not be done here the gate refuses.
    pub fn begin(nvidia: &'a Nvidia) -> Result<Self, CudaError> {
        nvidia.gate.shut()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is ours.
        let begun = check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(nvidia.stream.0, mode) });
        begun.inspect_err(|_| drop(nvidia.open_gate()))?;
        Ok(Capture { nvidia, ended: false })
    }

    /// Ends, and makes ready to be launched what was put down.
    ///
    /// **Errors** [`CudaError::Call`], also where the driver gave the capture up on its way.
    pub fn end(mut self) -> Result<Graph, CudaError> {
        let (graph, opened) = self.finish();
        let graph = graph?;
        opened?;
        let mut ready = null_mut();
        // SAFETY: the handle is a local; the graph is whole.
        check("cuGraphInstantiate", unsafe { sys::cuGraphInstantiateWithFlags(&mut ready, graph.0, 0) })?;
        Ok(Graph(ready))
    }

    fn finish(&mut self) -> (Result<Captured, CudaError>, Result<(), CudaError>) {
        self.ended = true;
        let mut graph = null_mut();
        // SAFETY: the stream is ours and captures; the graph is a local, which is null where there is none.
        let result = unsafe { sys::cuStreamEndCapture(self.nvidia.stream.0, &mut graph) };
        let graph = Captured(graph);
        let ended = check("cuStreamEndCapture", result).map_err(|error| match error {
            CudaError::Call { call, reason } => {
                let reason =
                    format!("{reason}; the driver gave the recording up because something in it cannot be recorded");
                CudaError::Call { call, reason }
            }
            other => other,
        });
        (ended.map(|()| graph), self.nvidia.open_gate())
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.finish();
        }
    }
}

/// What a capture has put down.
struct Captured(sys::CUgraph);

impl Drop for Captured {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: it came of a capture, and is destroyed once; a graph made ready does not need it.
            unsafe { sys::cuGraphDestroy(self.0) };
        }
    }
}
