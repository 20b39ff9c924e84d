//! [`Orders`]: the order between accesses of different thread blocks, by releases and acquires.
//!
//! A release is a fence followed by an atomic or a strong store, or a store that releases. A thread block that acquires the stored value
//! comes after it, and so does one that acquires from that thread block. Each event has its place in the order in which the launch ran.

use std::collections::{BTreeMap, HashMap};

/// The effect of an event on an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// A strong load, after which the thread block sees the accesses released there.
    Acquire,
    /// An atomic with a result: it acquires, and releases the accesses before a fence.
    Update,
    /// An atomic without a result: it only releases.
    Add,
    /// A strong store, which replaces the value there.
    Store,
}

/// An access that may order thread blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    /// Its place among all events of the launch.
    pub(crate) sequence: u64,
    pub(crate) address: u64,
    pub(crate) kind: EventKind,
    /// Accesses of earlier phases are released.
    pub(crate) fenced_phase: u32,
    /// Accesses of this phase and later come after it.
    pub(crate) phase: u32,
}

/// An access, as far as its order depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Point {
    /// The thread block.
    pub(crate) owner: usize,
    pub(crate) phase: u32,
    /// The bytes of an atomic.
    pub(crate) bytes: Option<(u64, u64)>,
}

/// The order between the thread blocks of a launch.
pub(crate) struct Orders {
    /// In the order in which they happened, with the thread block.
    events: Vec<(usize, Event)>,
    /// For each queried access: the phase from which on each other thread block comes after it.
    after: HashMap<Point, BTreeMap<usize, u32>>,
}

impl Orders {
    /// Takes `events` with their thread blocks.
    pub(crate) fn of(events: impl Iterator<Item = (usize, Event)>) -> Self {
        let mut events: Vec<(usize, Event)> = events.collect();
        events.sort_unstable_by_key(|(_, event)| event.sequence);
        Self {
            events,
            after: HashMap::new(),
        }
    }

    /// Returns whether one of two accesses of different thread blocks comes before the other.
    pub(crate) fn has_order(&mut self, a: Point, b: Point) -> bool {
        !self.events.is_empty() && (self.is_before(a, b) || self.is_before(b, a))
    }

    fn is_before(&mut self, a: Point, b: Point) -> bool {
        let events = &self.events;
        let after = (self.after)
            .entry(a)
            .or_insert_with_key(|point| all_after(events, *point));
        after.get(&b.owner).is_some_and(|&phase| phase <= b.phase)
    }
}

/// Returns the phase from which on each thread block comes after an access.
fn all_after(events: &[(usize, Event)], access: Point) -> BTreeMap<usize, u32> {
    let Point { owner, phase, bytes } = access;
    let mut after = BTreeMap::from([(owner, phase + 1)]);
    // Addresses at which the access is released, with the thread block whose later stores there keep it released.
    let mut released: Vec<(u64, usize)> = Vec::new();
    for &(at, event) in events {
        let is_there = released.iter().any(|&(address, _)| address == event.address);
        // The atomic that releases is visible itself.
        let is_itself = at == owner
            && phase < event.phase
            && bytes.is_some_and(|(start, end)| (start..end).contains(&event.address));
        let releases = event.kind != EventKind::Acquire
            && (is_itself || after.get(&at).is_some_and(|&from| from <= event.fenced_phase));
        if is_there && matches!(event.kind, EventKind::Acquire | EventKind::Update) {
            let from = after.entry(at).or_insert(event.phase);
            *from = event.phase.min(*from);
        }
        if releases && !is_there {
            released.push((event.address, at));
        } else if is_there && !releases && event.kind == EventKind::Store {
            released.retain(|&place| place.0 != event.address || place.1 == at);
        }
    }
    after.remove(&owner);
    after
}
