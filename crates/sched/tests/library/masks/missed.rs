//! How long a constrained stream is left out of steps for its masks, which come when the test lets them.

use std::{
    sync::{Mutex, mpsc},
    time::{Duration, Instant},
};

use crate::{
    library::{endless::Endless, engine::prompts_and_streams::Engine},
    masks::constraint::ConstraintFailure,
    params::GenerateParams,
};

/// A row takes part in the first step that begins once its mask is there, however long that took, and the engine counts the steps
/// in between.
#[test]
fn a_row_is_left_out_for_as_many_steps_as_its_mask_takes_and_no_longer() {
    let (let_mask, masks) = mpsc::channel();
    let masks = Mutex::new(Some(masks));
    // It allows all, once for each word that is sent.
    let source = Endless::source(move || {
        let masks: mpsc::Receiver<()> =
            (masks.lock().expect("no one panics with it").take()).expect("it begins once");
        move |_, words: &mut [u32]| {
            masks.recv().map_err(|_| ConstraintFailure {
                reason: "the test is over".to_owned(),
            })?;
            words.fill(u32::MAX);
            Ok(())
        }
    });
    let mut engine = Engine::fresh(75);
    let mut plain = engine.submit(20, 3000);
    let params = GenerateParams {
        constraint: Some(source),
        ..GenerateParams::default()
    };
    let mut held = engine.submit_with(20, 3000, params);
    // Prompts are computed without a mask.
    for _ in 0..10 {
        engine.step();
    }
    let began = Instant::now();
    for n_steps in [0, 1, 5, 12] {
        let n_missed = engine.core.tally().masks.n_missed;
        for _ in 0..n_steps {
            engine.step();
            while plain.try_next().is_some() {}
            assert!(held.try_next().is_none(), "its mask is not there");
        }
        assert_eq!(engine.core.tally().masks.n_missed - n_missed, n_steps);
        let_mask.send(()).expect("the constraint lives");
        while engine.core.mask_workers().n_results() == 0 {
            assert!(began.elapsed() < Duration::from_mins(1), "the mask does not come");
            std::thread::sleep(Duration::from_micros(200));
        }
        engine.step();
        assert!(
            held.try_next().is_some(),
            "the first step with its mask gives its token"
        );
        assert!(plain.try_next().is_some());
    }
    let masks = engine.core.tally().masks;
    // The first mask was missing from the beginning.
    assert!(masks.longest_missed >= 12, "{masks:?}");
    drop(let_mask);
}
