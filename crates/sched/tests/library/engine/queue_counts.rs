//! The count of waiting sequences that callers see is never older than the events that they have read.

use crate::{
    engine::generation::Generation,
    library::engine::prompts_and_streams::Engine,
    params::GenerateParams,
    queue::{
        event::Event,
        gauge::{Place, QueueGauge},
        mailbox::{Mailbox, QueueLimits},
    },
    sync::Arc,
};

/// Advances the engine until the generation has an event.
fn next_event(engine: &mut Engine, generation: &mut Generation) -> Event {
    loop {
        if let Some(event) = generation.try_next() {
            return event;
        }
        engine.step();
    }
}

#[test]
fn a_sequence_leaves_the_count_before_its_first_token() {
    let mut engine = Engine::fresh(25);
    let mut generation = engine.submit(20, 1);
    assert_eq!(engine.mailbox.n_queued(), (1, 20));
    let event = next_event(&mut engine, &mut generation);
    assert!(matches!(event, Event::Token(_)), "{event:?}");
    assert_eq!(engine.mailbox.n_queued(), (0, 0));
}

#[test]
fn a_sequence_leaves_the_count_before_its_failure() {
    let mut engine = Engine::fresh(25);
    let late = GenerateParams {
        deadline: Some(std::time::Duration::ZERO),
        ..GenerateParams::default()
    };
    let mut generation = engine.submit_with(20, 1, late);
    assert_eq!(engine.mailbox.n_queued(), (1, 20));
    let event = next_event(&mut engine, &mut generation);
    assert!(matches!(event, Event::Failed { .. }), "{event:?}");
    assert_eq!(engine.mailbox.n_queued(), (0, 0));
}

#[test]
fn parked_sequences_do_not_count_up_to_a_bound() {
    let mailbox = Mailbox::new(QueueLimits {
        max_queued: usize::MAX,
        max_queued_tokens: usize::MAX,
    });
    mailbox.change_queue((3, 15), (0, 0));
    let mut gauge = QueueGauge::new(Arc::clone(&mailbox), 2);
    let mut places = [Place::Queued; 3];
    for place in &mut places {
        gauge.set_parked(place, 5, true);
    }
    assert_eq!(places, [Place::Parked, Place::Parked, Place::Queued]);
    assert!(gauge.flush() && !gauge.flush());
    assert_eq!((gauge.n_parked(), mailbox.n_queued()), (2, (1, 5)));
    gauge.set_parked(&mut places[0], 5, false);
    gauge.set_parked(&mut places[0], 5, false);
    assert!(gauge.flush());
    assert_eq!((gauge.n_parked(), mailbox.n_queued()), (1, (2, 10)));
    for place in &mut places {
        gauge.leave(place, 5);
        gauge.leave(place, 5);
    }
    assert!(gauge.flush());
    assert_eq!((gauge.n_parked(), mailbox.n_queued()), (0, (0, 0)));
}
