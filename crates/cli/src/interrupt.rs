//! Ctrl-C as a flag that work looks at, and as the end of the generation that runs.
//!
//! Separate because a process has one handler. Invariant: the handler only sets the flag and cancels; what an
//! interruption means is decided where work can stop.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use tokenmill_sched::Canceller;

use crate::failure::Failure;

/// Whether Ctrl-C was pressed.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_set: AtomicBool,
    running: Mutex<Option<Canceller>>,
}

impl State {
    fn cancel_running(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(canceller) = &*running {
            canceller.cancel();
        }
    }
}

impl Interrupt {
    /// Takes Ctrl-C over from the system. Called once in a process.
    ///
    /// # Errors
    /// When the system does not allow it.
    pub(crate) fn install() -> Result<Self, Failure> {
        let state = Arc::new(State::default());
        let handler_state = Arc::clone(&state);
        ctrlc::set_handler(move || {
            handler_state.is_set.store(true, Ordering::SeqCst);
            handler_state.cancel_running();
        })
        .map_err(|error| Failure::work(format!("cannot handle Ctrl-C: {error}")))?;
        Ok(Self(state))
    }

    /// Whether it was pressed since the last [`Self::clear`].
    pub(crate) fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::SeqCst)
    }

    /// Forgets it.
    pub(crate) fn clear(&self) {
        self.0.is_set.store(false, Ordering::SeqCst);
    }

    /// Makes it cancel this generation, also when it was pressed before.
    pub(crate) fn cancels(&self, canceller: Canceller) {
        *self.0.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(canceller);
        if self.is_set() {
            self.0.cancel_running();
        }
    }
}
