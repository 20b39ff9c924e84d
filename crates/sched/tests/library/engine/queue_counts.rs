//! The count of waiting sequences that callers see is never older than the events that they have read.

use crate::{
    engine::generation::Generation, library::engine::prompts_and_streams::Engine, params::GenerateParams,
    queue::event::Event,
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
