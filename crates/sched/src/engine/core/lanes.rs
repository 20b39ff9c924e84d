//! [`Lanes`]: the requests of callers, and the lane of each of their sequences.
//!
//! Owned by [`Core`](super::Core). Invariants: a lane is found only by the sequence that it was opened for; a
//! request is known as long as one of its sequences has a lane.

use std::collections::HashMap;

use super::lane::Lane;
use crate::{
    arena::SeqId,
    queue::event::{Event, RequestId},
    sync::channel::Sender,
};

/// Requests and lanes; see the module.
#[derive(Default)]
pub(super) struct Lanes {
    /// By the slot of the sequence.
    lanes: Vec<Option<Lane>>,
    requests: HashMap<RequestId, Request>,
}

/// A request: the receiver of its events, and its sequences.
struct Request {
    events: Sender<Event>,
    sequences: Vec<SeqId>,
    n_open: usize,
}

impl Lanes {
    /// Adds a request whose sequences have lanes.
    pub(super) fn add_request(&mut self, id: RequestId, events: Sender<Event>, sequences: Vec<SeqId>) {
        let request = Request {
            events,
            n_open: sequences.len(),
            sequences,
        };
        self.requests.insert(id, request);
    }

    /// Adds the lane of a new sequence.
    pub(super) fn open(&mut self, lane: Lane) {
        let slot = lane.seq.slot();
        if self.lanes.len() <= slot {
            self.lanes.resize_with(slot + 1, || None);
        }
        self.lanes[slot] = Some(lane);
    }

    /// Removes and returns the lane of a sequence that ends; its request ends with the last of them, see
    /// [`Self::note_end`].
    pub(super) fn close(&mut self, seq: SeqId) -> Lane {
        let lane = self.lanes[seq.slot()].take();
        let lane = lane.expect("a sequence that ends has a lane");
        debug_assert_eq!(lane.seq, seq);
        lane
    }

    /// Records that one sequence of a request has ended and that its caller was told.
    pub(super) fn note_end(&mut self, id: RequestId) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.n_open -= 1;
            if request.n_open == 0 {
                self.requests.remove(&id);
            }
        }
    }

    /// Returns the lane of a sequence; `None` once it has ended.
    pub(super) fn get(&self, seq: SeqId) -> Option<&Lane> {
        let lane = self.lanes.get(seq.slot())?.as_ref()?;
        (lane.seq == seq).then_some(lane)
    }

    /// Does the same as [`Self::get`], for changes.
    pub(super) fn get_mut(&mut self, seq: SeqId) -> Option<&mut Lane> {
        let lane = self.lanes.get_mut(seq.slot())?.as_mut()?;
        (lane.seq == seq).then_some(lane)
    }

    /// Returns all lanes, by slot.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().flatten()
    }

    /// Does the same as [`Self::iter`], for changes.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.lanes.iter_mut().flatten()
    }

    /// Calls `act` with each lane of a request.
    pub(super) fn each_of(&mut self, id: RequestId, mut act: impl FnMut(&mut Lane)) {
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        for &seq in &request.sequences {
            let lane = self.lanes.get_mut(seq.slot()).and_then(Option::as_mut);
            if let Some(lane) = lane.filter(|lane| lane.seq == seq) {
                act(lane);
            }
        }
    }

    /// Returns all requests.
    pub(super) fn requests(&self) -> Vec<RequestId> {
        self.requests.keys().copied().collect()
    }

    /// Sends an event to the caller of a request. Returns whether the caller is behind.
    pub(super) fn send(&self, id: RequestId, event: Event) -> bool {
        (self.requests.get(&id)).is_some_and(|request| request.events.send(event))
    }
}
