//! Masks on a system that starts no thread.
//!
//! The tests inside the module are also compiled with the types of another scheduler, these are not.
//! Invariant: an order comes back although no thread is there.

use std::time::Duration;

use crate::{
    arena::Arena,
    library::endless::Endless,
    masks::{
        text::LookAhead,
        workers::{MaskOrder, MaskStage, MaskWorkers},
    },
    sync::thread,
};

#[test]
fn masks_are_computed_where_no_thread_can_be_started() {
    // More than the threads that may begin a constraint.
    const N_ORDERS: usize = 5;
    // More than any machine can map.
    let mut workers = MaskWorkers::with(|| thread::Builder::new().stack_size(1 << 62));
    let mut sequences = Arena::new();
    for _ in 0..N_ORDERS {
        workers.order(MaskOrder {
            seq: sequences.insert(()),
            stage: MaskStage::First(Endless::source(|| |_, _: &mut [u32]| Ok(()))),
            n_words: 1,
            ahead: LookAhead::default(),
            words: Vec::new(),
            arrival: None,
        });
    }
    let mut results = Vec::new();
    workers.wait_for_all(Duration::ZERO, &mut results);
    assert_eq!((results.len(), workers.n_open()), (N_ORDERS, 0));
    assert!(results.iter().all(|result| result.text.is_ok()));
}
