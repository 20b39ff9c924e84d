//! [`Fetch`]: the arrival of a launch's code on the multiprocessor.
//!
//! Code that is in no instruction cache comes from L2 line by line. A warp that reaches an instruction requests its line and the next ones, as a
//! stream buffer does; a branch to a line that no warp has requested waits for L2. An instruction's place in the code is that in the PTX, in
//! proportion. Invariant: a line comes once, for all warps.

use super::super::work::Work;

/// Bytes of a line. (H) in [`device`](super::super::device).
const LINE_BYTES: f64 = 128.0;

/// When the lines of the code arrive.
pub(super) struct Fetch {
    /// The time of each line; infinite for a line that no warp has requested.
    arrives: Vec<f64>,
    /// Lines that a warp has reached, so that it has requested the next ones.
    is_reached: Vec<bool>,
    /// Lines of an instruction.
    lines_each: f64,
    /// The earliest time at which another line may arrive.
    free: f64,
    line_clocks: f64,
    latency: f64,
    n_ahead: usize,
}

impl Fetch {
    pub(super) fn of(work: &Work<'_>) -> Self {
        let n_lines = f64::from(work.cold_code_bytes) / LINE_BYTES;
        Self {
            arrives: vec![f64::INFINITY; n_lines.ceil() as usize],
            is_reached: vec![false; n_lines.ceil() as usize],
            lines_each: n_lines / work.kernel.code.len().max(1) as f64,
            free: 0.0,
            line_clocks: LINE_BYTES / work.device.l2_port_bytes_per_clock,
            latency: work.device.latency.l2,
            n_ahead: work.device.code_lines_ahead,
        }
    }

    /// Returns when an instruction is there that a warp reaches at `now`.
    pub(super) fn arrives(&mut self, pc: u32, now: f64) -> f64 {
        let line = (f64::from(pc) * self.lines_each) as usize;
        let Some(is_reached) = self.is_reached.get_mut(line) else {
            return now;
        };
        if !std::mem::replace(is_reached, true) {
            let end = self.arrives.len().min(line + 1 + self.n_ahead);
            for arrives in &mut self.arrives[line..end] {
                if arrives.is_infinite() {
                    self.free = (self.free + self.line_clocks).max(now + self.latency);
                    *arrives = self.free;
                }
            }
        }
        self.arrives[line]
    }
}
