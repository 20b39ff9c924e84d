//! [`Capture`] and [`Graph`]: recording the launches of a step once, and replaying them.
//!
//! Invariant: dropping the guard ends its capture, whatever happened before, so a stream is never left capturing.

use std::sync::Arc;

use super::{Device, Handle, Stream, cuda::Driver};
use crate::error::Result;

/// A compute stream that records launches instead of running them.
#[derive(Debug)]
pub struct Capture {
    driver: Arc<Driver>,
    is_open: bool,
}

impl Capture {
    /// Begins to record the work that is queued on the compute stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn begin(device: &Device) -> Result<Self> {
        let driver = Arc::clone(device.driver());
        driver.begin_capture(Stream::Compute)?;
        Ok(Self {
            driver,
            is_open: true,
        })
    }

    /// Ends the recording and makes it launchable. Nothing of it has run.
    ///
    /// # Errors
    /// The driver's; the stream is then as before the capture.
    pub fn finish(mut self) -> Result<Graph> {
        self.is_open = false;
        let handle = self.driver.end_capture(Stream::Compute)?;
        Ok(Graph {
            driver: Arc::clone(&self.driver),
            handle,
        })
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.is_open
            && let Ok(handle) = self.driver.end_capture(Stream::Compute)
        {
            self.driver.destroy_graph(handle);
        }
    }
}

/// Recorded launches. It holds addresses of buffers: code that moves one must drop the graph.
#[derive(Debug)]
pub struct Graph {
    driver: Arc<Driver>,
    handle: Handle,
}

impl Graph {
    /// Queues all recorded launches on the compute stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn replay(&mut self) -> Result<()> {
        self.driver.launch_graph(Stream::Compute, self.handle)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        self.driver.destroy_graph(self.handle);
    }
}
