//! Queues copies between the host and a GPU, and of rows.
//!
//! A capture must not contain copies of the host's memory. Invariant: a refused copy is not counted.

use super::{Operation, State};
use crate::{
    code::{self, Outcome},
    fault::Fault,
    host_memory::HostMemory,
    rows::{Place, Rows},
};

impl State {
    pub(crate) fn upload(&mut self, stream: u64, from: HostMemory, to: u64) -> Outcome {
        self.context
            .refuse_on_captured(stream, code::STREAM_CAPTURE_UNSUPPORTED)?;
        self.context.queue(stream, Operation::Upload { from, to })?;
        self.counts.n_uploads += 1;
        Ok(())
    }

    pub(crate) fn download(&mut self, stream: u64, from: u64, to: HostMemory) -> Outcome {
        self.context
            .refuse_on_captured(stream, code::STREAM_CAPTURE_UNSUPPORTED)?;
        self.fail_download()?;
        self.context.queue(stream, Operation::Download { from, to })?;
        self.counts.n_downloads += 1;
        Ok(())
    }

    /// Fails if a test injected a fault for this copy to the host.
    fn fail_download(&mut self) -> Outcome {
        match &mut self.fault {
            Some(Fault::Download { after }) if *after > 0 => *after -= 1,
            Some(Fault::Download { .. }) => {
                self.fault = None;
                return Err(code::INVALID_VALUE);
            }
            _ => {}
        }
        Ok(())
    }

    /// Queues a copy of rows, which counts as one.
    pub(crate) fn copy_rows(&mut self, stream: u64, rows: Rows) -> Outcome {
        match rows {
            Rows {
                from: Place::Device(_),
                to: Place::Device(_),
                ..
            } => {}
            _ => (self.context).refuse_on_captured(stream, code::STREAM_CAPTURE_UNSUPPORTED)?,
        }
        if matches!(rows.to, Place::Host(_)) {
            self.fail_download()?;
        }
        self.context.queue(stream, Operation::Rows(rows))?;
        self.counts.n_uploads += u64::from(matches!(rows.from, Place::Host(_)));
        self.counts.n_downloads += u64::from(matches!(rows.to, Place::Host(_)));
        Ok(())
    }
}
