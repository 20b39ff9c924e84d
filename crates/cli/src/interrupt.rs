//! Ctrl-C as a flag that work checks, and as the end of the running generation.
//!
//! A process has one handler, whose action each part of a command sets. Invariant: the first press of an
//! [`Interrupt`] only sets the flag and cancels, and the work decides at its next stopping point how to
//! continue; a second press before anything has stopped ends the program at once.

use std::{
    io::{self, IsTerminal as _},
    process,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokenmill_sched::Canceller;

use crate::{
    echo,
    failure::{Failure, INTERRUPTED},
    note::note,
};

type Action = Box<dyn FnMut() + Send>;

/// The action of Ctrl-C; `None` until it is taken over from the system.
static ACTION: Mutex<Option<Action>> = Mutex::new(None);

/// Whether Ctrl-C was pressed.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_set: AtomicBool,
    running: Mutex<Option<Canceller>>,
}

/// The effect of pressing Ctrl-C.
#[derive(Debug, PartialEq, Eq)]
enum Press {
    /// Ends the running generation.
    Cancel,
    /// Ends the program, because a step has not ended since an earlier press.
    Exit,
}

impl State {
    fn press(&self) -> Press {
        if self.is_set.swap(true, Ordering::SeqCst) {
            Press::Exit
        } else {
            Press::Cancel
        }
    }

    fn cancel_running(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(canceller) = &*running {
            canceller.cancel();
        }
    }
}

impl Interrupt {
    /// Takes Ctrl-C over from the system, or from its earlier action.
    ///
    /// # Errors
    /// When the system does not allow it.
    pub(crate) fn install() -> Result<Self, Failure> {
        let state = Arc::new(State::default());
        let handler_state = Arc::clone(&state);
        handle(move || match handler_state.press() {
            Press::Cancel => handler_state.cancel_running(),
            Press::Exit => exit(),
        })?;
        Ok(Self(state))
    }

    /// Whether it was pressed and not forgotten.
    pub(crate) fn is_pressed(&self) -> bool {
        self.0.is_set.load(Ordering::SeqCst)
    }

    /// Forgets that it was pressed.
    pub(crate) fn clear(&self) {
        self.0.is_set.store(false, Ordering::SeqCst);
    }

    /// Makes it cancel this generation, also when it was pressed before.
    pub(crate) fn cancels(&self, canceller: Canceller) {
        *self.0.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(canceller);
        if self.0.is_set.load(Ordering::SeqCst) {
            self.0.cancel_running();
        }
    }
}

/// Makes Ctrl-C end the program at once, with the exit code that is documented for it: for work that leaves nothing behind
/// before it is complete.
///
/// # Errors
/// When the system does not allow it.
pub(crate) fn ends_at_once() -> Result<(), Failure> {
    handle(exit)
}

/// Makes Ctrl-C end the program at once, after some `last_words` on the terminal.
///
/// # Errors
/// When the system does not allow it.
pub(crate) fn ends_with(mut last_words: impl FnMut() + Send + 'static) -> Result<(), Failure> {
    handle(move || {
        last_words();
        exit();
    })
}

/// Leaves Ctrl-C to another handler, which is called besides this one.
pub(crate) fn leave() {
    let mut action = ACTION.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(action) = &mut *action {
        *action = Box::new(|| {});
    }
}

fn handle(action: impl FnMut() + Send + 'static) -> Result<(), Failure> {
    let mut current = ACTION.lock().unwrap_or_else(PoisonError::into_inner);
    if current.replace(Box::new(action)).is_some() {
        return Ok(());
    }
    let run = || {
        let mut action = ACTION.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(action) = &mut *action {
            action();
        }
    };
    ctrlc::set_handler(run).map_err(|error| Failure::work(format!("cannot handle Ctrl-C: {error}")))
}

fn exit() {
    echo::restore_at_end();
    // A bar may stand in the line.
    if io::stderr().is_terminal() {
        note!("");
    }
    process::exit(i32::from(INTERRUPTED));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_press_ends_the_program_unless_the_first_was_served() {
        let interrupt = Interrupt(Arc::default());
        assert_eq!(interrupt.0.press(), Press::Cancel);
        assert_eq!(interrupt.0.press(), Press::Exit);
        interrupt.clear();
        assert_eq!(interrupt.0.press(), Press::Cancel);
    }
}
