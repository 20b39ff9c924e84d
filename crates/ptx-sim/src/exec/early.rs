//! Launches that may begin before earlier ones are done: reads and writes before and after their threads
//! wait.
//!
//! Earlier launches have run when this one begins, but a device promises that only after `griddepcontrol.wait`. So the bytes that they wrote
//! count as not yet written: a thread that reads them before it waits gets other bytes, and a finding. Invariant: a launch without a finding
//! gives the same results whenever it begins.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::{BlockRunner, Warp, lanes_of, memory::LaneWords, memory::WarpAccess};
use crate::{FindingKind, op::Order, written::Written};

/// The value that a thread reads in place of bytes that are not yet written: a NaN.
const POISON: u32 = 0x7fff_dead;

/// State of the launches before one that may begin early.
#[derive(Clone, Copy)]
pub(crate) struct Early<'a> {
    /// The bytes that they write.
    pub(crate) in_flight: &'a Written,
    /// Whether a thread has waited for them.
    pub(crate) has_waited: &'a AtomicBool,
}

impl BlockRunner<'_> {
    pub(super) fn await_earlier(&mut self, warp: &mut Warp, mask: u32) {
        warp.has_waited |= mask;
        if let Some(early) = self.context.early {
            early.has_waited.store(true, Relaxed);
        }
    }

    /// Reports loads of bytes that earlier launches write: loads before the wait, and loads that may be made before it wherever they stand.
    /// Returns their lanes.
    pub(super) fn check_early_read(&mut self, warp: &Warp, access: &WarpAccess<'_>) -> u32 {
        let Some(early) = self.context.early else {
            return 0;
        };
        let is_stale = access.order == Order::NonCoherent;
        let suspects = if is_stale {
            access.mask
        } else {
            access.mask & !warp.has_waited
        };
        let bytes = u64::from(access.bytes());
        let found: u32 = lanes_of(suspects)
            .filter(|&lane| {
                let address = access.addresses[lane];
                early.in_flight.overlaps(address, address + bytes)
            })
            .fold(0, |found, lane| found | 1 << lane);
        if found != 0 {
            let lane = found.trailing_zeros();
            let address = access.addresses[lane as usize];
            let kind = if warp.has_waited >> lane & 1 == 0 {
                FindingKind::EarlyRead { address }
            } else {
                FindingKind::StaleRead { address }
            };
            self.find(warp.index, lane, access.pc, kind);
        }
        found
    }

    /// Replaces the values that lanes read.
    pub(super) fn poison(words: &mut LaneWords, lanes: u32) {
        for lane in lanes_of(lanes) {
            for word in words.iter_mut() {
                word[lane] = POISON;
            }
        }
    }

    /// Reports writes before the wait, since an earlier launch may still read or write there.
    pub(super) fn check_early_write(&mut self, warp: &Warp, access: &WarpAccess<'_>) {
        let early = access.mask & !warp.has_waited;
        if self.context.early.is_some() && early != 0 {
            let lane = early.trailing_zeros();
            let address = access.addresses[lane as usize];
            self.find(warp.index, lane, access.pc, FindingKind::EarlyWrite { address });
        }
    }
}
