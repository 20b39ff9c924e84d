//! Ctrl-C as a flag that the generate loop looks at.
//!
//! Separate because a process has one handler. Invariant: the handler only sets the flag; what an interruption means is
//! decided where work can stop.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::failure::Failure;

/// Whether Ctrl-C was pressed.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Takes Ctrl-C over from the system. Called once in a process.
    ///
    /// # Errors
    /// When the system does not allow it.
    pub(crate) fn install() -> Result<Self, Failure> {
        let flag = Arc::new(AtomicBool::new(false));
        let handler_flag = Arc::clone(&flag);
        ctrlc::set_handler(move || handler_flag.store(true, Ordering::Relaxed))
            .map_err(|error| Failure::work(format!("cannot handle Ctrl-C: {error}")))?;
        Ok(Self(flag))
    }

    /// Whether it was pressed since the last [`Self::clear`].
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Forgets it.
    pub(crate) fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
