//! [`Start`]: the begin of a launch, after the previous one or during its end.
//!
//! With programmatic dependent launch the thread blocks of a launch come to the multiprocessors once those of the previous launch are all there and
//! have signalled; they do the work that is independent of it, and wait. Invariants: a launch begins no earlier than [`DeviceProfile::launch_us`]
//! after the signal of the previous one; its threads continue no earlier than [`DeviceProfile::dependent_us`] after the end of the previous one; it
//! takes only the bandwidth and the room that the previous one leaves.

use super::{DeviceProfile, Estimate};

/// Describes how a launch begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Start {
    /// Microseconds from the end of the previous launch to this one's first instruction after its wait.
    pub(super) gap_us: f64,
    /// Microseconds by which its first thread blocks begin before that moment.
    pub(super) lead_us: f64,
    /// Share of the device memory's bandwidth that the previous launch takes meanwhile.
    pub(super) busy_share: f64,
    /// Room on a multiprocessor that the thread blocks of the previous launch leave.
    pub(super) room: Room,
}

/// Resources of a multiprocessor that are free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) n_warps: u32,
    pub(super) n_registers: u32,
    pub(super) shared_bytes: u32,
    pub(super) n_blocks: u32,
}

impl Start {
    /// Describes a launch that begins when the previous one is done.
    pub fn after(device: &DeviceProfile) -> Self {
        Self {
            gap_us: device.launch_us,
            lead_us: 0.0,
            busy_share: 0.0,
            room: Room::default(),
        }
    }

    /// Describes a launch that may begin early, after one of this estimate.
    pub fn early(before: &Estimate, device: &DeviceProfile) -> Self {
        let arrives = before.lets_next_us - before.us + device.launch_us;
        let gap_us = arrives.max(device.dependent_us);
        Self {
            gap_us,
            lead_us: gap_us - arrives,
            busy_share: before.dram_share.min(1.0),
            room: before.room,
        }
    }

    /// Returns the figures that must agree for launches to be alike.
    pub fn key(&self) -> [u64; 4] {
        let Room {
            n_warps,
            n_registers,
            shared_bytes,
            n_blocks,
        } = self.room;
        [
            self.gap_us.to_bits(),
            self.lead_us.to_bits(),
            self.busy_share.to_bits(),
            [n_warps, n_registers, shared_bytes, n_blocks]
                .iter()
                .fold(0, |key, &part| {
                    key.wrapping_mul(0x0100_0000_01b3) ^ u64::from(part)
                }),
        ]
    }
}

impl Room {
    /// Returns the room that `n` thread blocks leave.
    pub(super) fn beside(
        n: u32,
        n_threads: u32,
        n_registers: u32,
        shared_bytes: u32,
        device: &DeviceProfile,
    ) -> Self {
        let n_warps = n_threads.div_ceil(32);
        Self {
            n_warps: device.max_warps.saturating_sub(n * n_warps),
            n_registers: (device.n_registers)
                .saturating_sub(n * n_warps * (n_registers.max(1) * 32).next_multiple_of(256)),
            shared_bytes: device
                .shared_bytes
                .saturating_sub(n * (shared_bytes.next_multiple_of(128) + 1024)),
            n_blocks: device.max_blocks.saturating_sub(n),
        }
    }

    /// Returns the thread blocks that fit into it.
    pub(super) fn blocks(&self, n_threads: u32, n_registers: u32, shared_bytes: u32) -> u32 {
        let n_warps = n_threads.div_ceil(32).max(1);
        let registers = n_warps * (n_registers.max(1) * 32).next_multiple_of(256);
        (self.n_warps / n_warps)
            .min(self.n_registers / registers)
            .min(self.shared_bytes / (shared_bytes.next_multiple_of(128) + 1024))
            .min(self.n_blocks)
    }
}
