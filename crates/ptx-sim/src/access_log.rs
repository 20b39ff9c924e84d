//! Global bytes that each thread block accessed in a launch, and the check that conflicting accesses have an
//! order.
//! Each thread block keeps a log of byte ranges; after the launch the logs are compared. So the check costs little during the run, does not depend
//! on the schedule of the host threads, and is exact to the byte. Thread blocks are ordered only by releases and acquires between them
//! ([`Orders`]).

use std::collections::BTreeMap;

use crate::{
    counters::{BufferTraffic, SECTOR_BYTES},
    memory::DeviceMemory,
    memory::DevicePtr,
    order::{Event, EventKind, Orders, Point},
    report::Conflict,
};

/// Log length at which ranges are merged.
const MERGE_AT: usize = 1 << 14;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AccessKind {
    Read,
    /// A volatile or otherwise strong load: it may race with strong stores and atomics.
    StrongRead,
    Write,
    /// An atomic or a strong store: it may race with others of this kind.
    Atomic,
}

impl AccessKind {
    fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::Atomic)
    }

    fn is_strong(self) -> bool {
        matches!(self, Self::StrongRead | Self::Atomic)
    }
}

/// A range of bytes that one warp instruction accessed, lane after lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) kind: AccessKind,
    pub(crate) pc: u32,
    pub(crate) warp: u16,
    /// Lane of the first byte.
    pub(crate) lane: u8,
    /// Bytes of each lane.
    pub(crate) lane_bytes: u8,
    /// Number of fences and atomics of the thread block before it.
    pub(crate) phase: u32,
}

impl Access {
    /// Returns the access of a thread block as a point for [`Orders`].
    fn point(&self, owner: usize) -> Point {
        Point {
            owner,
            phase: self.phase,
            bytes: (self.kind == AccessKind::Atomic).then_some((self.start, self.end)),
        }
    }

    fn lane_of(&self, address: u64) -> u32 {
        let lanes = (address - self.start) / u64::from(self.lane_bytes).max(1);
        (u32::from(self.lane) + lanes as u32) % 32
    }
}

/// One thread block's log.
#[derive(Clone, Debug, Default)]
pub(crate) struct AccessLog {
    accesses: Vec<Access>,
    events: Vec<Event>,
    /// Strong loads that acquire with the next fence: address and place in the launch.
    loaded: Vec<(u64, u64)>,
    /// The instruction and address that acquired last, if nothing else was accessed since.
    acquired: Option<(u32, u64)>,
    merge_at: usize,
    phase: u32,
    fenced_phase: u32,
}

impl AccessLog {
    pub(crate) fn push(&mut self, mut access: Access) {
        access.phase = self.phase;
        self.acquired = self.acquired.filter(|&(pc, _)| pc == access.pc);
        if let Some(last) = self.accesses.last()
            && (last.start, last.end, last.kind, last.pc, last.phase)
                == (access.start, access.end, access.kind, access.pc, access.phase)
        {
            return;
        }
        self.accesses.push(access);
        if self.accesses.len() >= self.merge_at.max(MERGE_AT) {
            self.merge();
        }
    }

    /// Lists the written ranges, in no order.
    pub(crate) fn writes(&self) -> impl Iterator<Item = (u64, u64)> {
        let written = |access: &&Access| access.kind.is_write();
        (self.accesses.iter())
            .filter(written)
            .map(|access| (access.start, access.end))
    }

    pub(crate) fn fence(&mut self) {
        self.phase += 1;
        self.fenced_phase = self.phase;
        for (address, sequence) in std::mem::take(&mut self.loaded) {
            self.event(address, EventKind::Acquire, self.phase, sequence);
        }
    }

    /// Begins a store that releases: it orders all accesses so far, and strong loads before it acquire nothing.
    pub(crate) fn begin_release(&mut self) {
        self.phase += 1;
    }

    /// Notes a store to some addresses that [releases](Self::begin_release) earlier accesses.
    pub(crate) fn store_release(&mut self, addresses: impl Iterator<Item = u64>, sequence: u64) {
        let fenced_phase = std::mem::replace(&mut self.fenced_phase, self.phase);
        self.release(addresses, EventKind::Store, sequence);
        self.fenced_phase = fenced_phase;
    }

    /// Notes an atomic, or a strong store, to some addresses; it releases the accesses before the last fence.
    pub(crate) fn release(&mut self, addresses: impl Iterator<Item = u64>, kind: EventKind, sequence: u64) {
        self.phase += u32::from(kind == EventKind::Update);
        // A pure release orders nothing after it in its own thread block, so accesses on both sides may be
        // merged.
        let phase = self.phase + u32::from(kind != EventKind::Update);
        let mut last = None;
        for address in addresses {
            if last.replace(address) != Some(address) {
                self.event(address, kind, phase, sequence);
            }
        }
    }

    /// Notes a strong load of an address; it acquires at once, or with the next fence.
    pub(crate) fn load_strongly(&mut self, address: u64, pc: u32, is_ordered: bool, sequence: u64) {
        if is_ordered {
            // A spinning thread acquires with the last of its loads.
            if self.acquired == Some((pc, address))
                && let Some(last) = self.events.last_mut()
            {
                last.sequence = sequence;
                return;
            }
            self.phase += 1;
            self.event(address, EventKind::Acquire, self.phase, sequence);
            self.acquired = Some((pc, address));
        } else {
            self.loaded.retain(|&(known, _)| known != address);
            self.loaded.push((address, sequence));
        }
    }

    fn event(&mut self, address: u64, kind: EventKind, phase: u32, sequence: u64) {
        self.events.push(Event {
            sequence,
            address,
            kind,
            fenced_phase: self.fenced_phase,
            phase,
        });
        self.acquired = None;
    }

    /// Joins adjacent ranges of one instruction of one warp, if whole warps make the lane of each byte known.
    fn merge(&mut self) {
        self.accesses.sort_unstable_by_key(|access| {
            (
                access.kind,
                access.pc,
                access.warp,
                access.phase,
                access.start,
                access.end,
            )
        });
        let is_whole = |access: &Access| {
            access.lane == 0 && (access.end - access.start).is_multiple_of(32 * u64::from(access.lane_bytes))
        };
        self.accesses.dedup_by(|next, kept| {
            let is_same = (next.kind, next.pc, next.warp, next.phase, next.lane_bytes)
                == (kept.kind, kept.pc, kept.warp, kept.phase, kept.lane_bytes);
            if !is_same {
                return false;
            }
            if next.start == kept.end && is_whole(kept) && is_whole(next) {
                kept.end = next.end;
                return true;
            }
            next.start >= kept.start && next.end <= kept.end
        });
        self.merge_at = self.accesses.len() * 2;
    }

    pub(crate) fn finish(mut self) -> Self {
        self.merge();
        self
    }
}

/// A race found in the logs: two accesses of different thread blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Race {
    pub(crate) address: u64,
    pub(crate) conflict: Conflict,
    /// Thread block, access and lane; the later one in grid order is reported as the finder.
    pub(crate) first: (u64, Access, u32),
    pub(crate) second: (u64, Access, u32),
}

/// A written range, with the first thread block that wrote it; several may have done so atomically.
struct Written {
    start: u64,
    end: u64,
    owner: usize,
    access: Access,
}

/// Finds races in the logs of all thread blocks, at most `limit`. `logs` pairs linear thread block indices with logs. `has_waited` says that thread
/// blocks waited for each other, so that any of them may have written the same bytes as others.
/// blocks waited for each other, so that each may have written what others had.
pub(crate) fn races(logs: &[(u64, AccessLog)], has_waited: bool, limit: usize) -> Vec<Race> {
    let mut found = Vec::new();
    let events = (logs.iter().enumerate())
        .flat_map(|(owner, (_, log))| log.events.iter().map(move |event| (owner, *event)));
    let mut orders = Orders::of(events);
    let mut writes: Vec<(usize, Access)> = Vec::new();
    for (owner, (_, log)) in logs.iter().enumerate() {
        let is_write = |access: &&Access| access.kind.is_write();
        writes.extend(
            log.accesses
                .iter()
                .filter(is_write)
                .map(|access| (owner, *access)),
        );
    }
    if writes.is_empty() {
        return found;
    }
    writes.sort_unstable_by_key(|(owner, access)| (access.start, access.end, *owner, access.pc));
    if has_waited {
        all_races(logs, &mut orders, &writes, &mut found, limit);
        return found;
    }
    let mut written: Vec<Written> = Vec::new();
    for (owner, access) in writes {
        let mut start = access.start;
        // Only the last few ranges can overlap: they are sorted and disjoint, so walk back.
        let overlapping = written
            .iter()
            .rposition(|range| range.end <= start)
            .map_or(0, |index| index + 1);
        for range in &written[overlapping..] {
            let is_atomic = range.access.kind == AccessKind::Atomic && access.kind == AccessKind::Atomic;
            let other = (range.owner, range.access);
            if other.0 != owner
                && !is_atomic
                && !orders.has_order(other.1.point(other.0), access.point(owner))
            {
                push(
                    &mut found,
                    logs,
                    start,
                    Conflict::WriteWrite,
                    other,
                    (owner, access),
                    limit,
                );
            }
            start = start.max(range.end);
        }
        if start < access.end {
            written.push(Written {
                start,
                end: access.end,
                owner,
                access,
            });
        }
    }
    for (reader, (_, log)) in logs.iter().enumerate() {
        for access in log.accesses.iter().filter(|access| !access.kind.is_write()) {
            let first = written.partition_point(|range| range.end <= access.start);
            for range in written[first..]
                .iter()
                .take_while(|range| range.start < access.end)
            {
                let writer = range.owner;
                if writer == reader
                    || range.access.kind.is_strong() && access.kind.is_strong()
                    || orders.has_order(range.access.point(writer), access.point(reader))
                {
                    continue;
                }
                let at = range.start.max(access.start);
                push(
                    &mut found,
                    logs,
                    at,
                    Conflict::WriteRead,
                    (writer, range.access),
                    (reader, *access),
                    limit,
                );
            }
        }
    }
    found
}

/// Compares each access with each write of the same bytes; `writes` are sorted by their start.
fn all_races(
    logs: &[(u64, AccessLog)],
    orders: &mut Orders,
    writes: &[(usize, Access)],
    found: &mut Vec<Race>,
    limit: usize,
) {
    let ends: Vec<u64> = (writes.iter())
        .scan(0, |end, (_, access)| {
            *end = access.end.max(*end);
            Some(*end)
        })
        .collect();
    for (owner, (_, log)) in logs.iter().enumerate() {
        for access in &log.accesses {
            let behind = writes.partition_point(|(_, write)| write.start < access.end);
            for at in (0..behind).rev().take_while(|&at| ends[at] > access.start) {
                let (writer, write) = writes[at];
                // A pair of writes is checked once, from the owner with the higher index.
                let is_asked = writer != owner && !(access.kind.is_write() && writer > owner);
                if !is_asked
                    || write.end <= access.start
                    || write.kind.is_strong() && access.kind.is_strong()
                    || orders.has_order(write.point(writer), access.point(owner))
                {
                    continue;
                }
                let conflict = if access.kind.is_write() {
                    Conflict::WriteWrite
                } else {
                    Conflict::WriteRead
                };
                let address = write.start.max(access.start);
                push(
                    found,
                    logs,
                    address,
                    conflict,
                    (writer, write),
                    (owner, *access),
                    limit,
                );
            }
        }
    }
}

fn push(
    found: &mut Vec<Race>,
    logs: &[(u64, AccessLog)],
    address: u64,
    conflict: Conflict,
    (first, a): (usize, Access),
    (second, b): (usize, Access),
    limit: usize,
) {
    // One report for a pair of instructions is enough.
    let is_new = !found
        .iter()
        .any(|race| (race.first.1.pc, race.second.1.pc, race.conflict) == (a.pc, b.pc, conflict));
    if is_new && found.len() < limit {
        found.push(Race {
            address,
            conflict,
            first: (logs[first].0, a, a.lane_of(address)),
            second: (logs[second].0, b, b.lane_of(address)),
        });
    }
}

/// Adds the number of different sectors of each allocation in the logs.
pub(crate) fn unique_sectors(
    logs: &[(u64, AccessLog)],
    memory: &DeviceMemory,
    buffers: &mut BTreeMap<DevicePtr, BufferTraffic>,
) {
    for is_store in [false, true] {
        let mut ranges: Vec<(u64, u64)> = logs
            .iter()
            .flat_map(|(_, log)| &log.accesses)
            .filter(|access| access.kind.is_write() == is_store)
            .map(|access| (access.start / SECTOR_BYTES, access.end.div_ceil(SECTOR_BYTES)))
            .collect();
        ranges.sort_unstable();
        let mut end = 0;
        for (start, range_end) in ranges {
            let new = range_end.saturating_sub(start.max(end));
            end = end.max(range_end);
            let Some(index) = memory.find(start * SECTOR_BYTES, 0) else {
                continue;
            };
            let buffer = buffers
                .entry(DevicePtr(memory.allocation(index).address))
                .or_default();
            if is_store {
                buffer.unique_stored_sectors += new;
            } else {
                buffer.unique_loaded_sectors += new;
            }
        }
    }
}
