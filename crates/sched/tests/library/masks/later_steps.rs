//! Masks of later steps are looked at behind those of the step that runs.
//!
//! Its own file because it runs threads of the system's, which other schedulers of threads do not.

use std::time::Duration;

use crate::{
    arena::Arena,
    masks::{
        constraint::{ConstraintFailure, ConstraintSource, TokenConstraint},
        text::{LookAhead, MaskedText, SharedText},
        workers::{MaskOrder, MaskStage, MaskWorkers},
    },
    sync::{Arc, Mutex, mpsc},
};

/// One token is allowed at each place. The masks of all places but the first two wait until the gate is opened.
struct Gated {
    n_tokens: u32,
    is_reached: mpsc::Sender<()>,
    gate: Arc<Mutex<mpsc::Receiver<()>>>,
}

impl TokenConstraint for Gated {
    fn mask(&mut self, words: &mut [u32]) -> Result<(), ConstraintFailure> {
        if self.n_tokens > 1 {
            let _ = self.is_reached.send(());
            // It is opened for good by dropping the other end.
            let _ = self.gate.lock().unwrap().recv();
        }
        words[0] = 1 << self.n_tokens;
        Ok(())
    }

    fn commit(&mut self, token: u32) -> Result<(), ConstraintFailure> {
        assert_eq!(
            token, self.n_tokens,
            "guesses are taken back before what is sampled"
        );
        self.n_tokens += 1;
        Ok(())
    }

    fn is_done(&self) -> bool {
        false
    }

    fn rollback(&mut self, n_tokens: usize) -> Result<(), ConstraintFailure> {
        self.n_tokens -= n_tokens as u32;
        Ok(())
    }
}

#[test]
fn a_step_has_its_masks_before_those_that_are_forced_behind_them() {
    let seq = Arena::new().insert(());
    let mut workers = MaskWorkers::new();
    let (is_reached, reached) = mpsc::channel();
    let (opens, gate) = mpsc::channel();
    let (is_reached, gate) = (Mutex::new(is_reached), Arc::new(Mutex::new(gate)));
    let source = ConstraintSource::new(move || {
        Box::new(Gated {
            n_tokens: 0,
            is_reached: is_reached.lock().unwrap().clone(),
            gate: Arc::clone(&gate),
        })
    });
    let order = |text: &Arc<SharedText>, at: usize, token| MaskOrder {
        seq,
        stage: MaskStage::Next(Arc::clone(text), vec![token]),
        n_words: 1,
        ahead: LookAhead {
            at,
            n_forced: 8,
            patience: Duration::MAX,
            ..LookAhead::default()
        },
        words: Vec::new(),
        arrival: None,
    };
    let text = Arc::new(SharedText::new(MaskedText::begin(source)));
    let mut results = Vec::new();
    workers.order(order(&text, 5, 0));
    workers.wait_for_all(Duration::from_mins(1), &mut results);
    assert_eq!(results.len(), 1, "it waits for masks of a later step");
    assert_eq!(
        (&results[0].words[..], results[0].seen.tokens.len()),
        (&[1 << 1][..], 0)
    );
    // The next token is there while the first forced one is looked at.
    reached.recv().unwrap();
    text.want();
    workers.order(order(&text, 6, 1));
    drop(opens);
    workers.wait_for_one(&mut results);
    assert_eq!(results[1].words, [1 << 2]);
    let foreseen = workers.take_foreseen();
    let first = &foreseen[0];
    assert_eq!((first.seq, first.seen.at), (seq, 5));
    assert_eq!(first.seen.tokens, [1], "it ends for what is wanted");
}
