//! Tests of the stream of page events with a slow reader.
//!
//! They are in a separate file because `tests/shuttle` compiles the stream's file with other channels, which
//! work only inside its scheduler.

use tokenmill_backend::PageGroup;

use crate::pages::events::{PageEvent, PageTier, page_events};

#[test]
fn a_reader_that_fell_behind_is_told_to_begin_again() {
    let (mut sender, mut events) = page_events(2);
    let batch = |key: u64| {
        vec![PageEvent::Removed {
            key,
            group: PageGroup::Main,
            tier: PageTier::Pool,
        }]
    };
    for idx in 0..4 {
        sender.send(batch(idx));
    }
    assert_eq!(events.try_next(), Some(batch(0)));
    assert_eq!(events.try_next(), Some(batch(1)));
    assert_eq!(events.try_next(), Some(vec![PageEvent::Cleared]));
    assert_eq!(events.try_next(), None, "the others were left out");
    sender.send(batch(4));
    assert_eq!(events.try_next(), Some(batch(4)));
    sender.send(batch(5));
    assert_eq!(events.try_next(), Some(batch(5)));
}
