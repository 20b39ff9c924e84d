//! [`Signals`]: the signals that ask a running command to stop, one after the other.
//!
//! Systems differ: UNIX has SIGTERM and SIGINT, others have only Ctrl-C. Invariant: after [`Signals::catch`]
//! no such signal ends the program by itself.

use std::io;

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};
#[cfg(windows)]
use tokio::signal::windows::{CtrlC, ctrl_c};

use crate::interrupt;

/// Which signals a command waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-C and, on UNIX, SIGTERM.
    Stop,
}

/// Signals as they come.
pub(crate) struct Signals {
    #[cfg(unix)]
    interrupt: Signal,
    #[cfg(unix)]
    terminate: Option<Signal>,
    #[cfg(windows)]
    interrupt: CtrlC,
}

impl Signals {
    /// Takes the signals over from the system.
    ///
    /// # Errors
    /// Where the system does not let a program handle them.
    #[cfg(unix)]
    pub(crate) fn catch(kind: Kind) -> io::Result<Self> {
        interrupt::leave();
        let terminate = match kind {
            Kind::Interrupt => None,
            Kind::Stop => Some(signal(SignalKind::terminate())?),
        };
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate })
    }

    /// Takes Ctrl-C over from the system, which has no other signal for any kind.
    ///
    /// # Errors
    /// Where the system does not let a program handle it.
    #[cfg(windows)]
    pub(crate) fn catch(_: Kind) -> io::Result<Self> {
        interrupt::leave();
        Ok(Self { interrupt: ctrl_c()? })
    }

    /// Waits for the next one.
    #[cfg(unix)]
    pub(crate) async fn next(&mut self) {
        let Some(terminate) = &mut self.terminate else {
            self.interrupt.recv().await;
            return;
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }

    /// Waits for the next one.
    #[cfg(windows)]
    pub(crate) async fn next(&mut self) {
        self.interrupt.recv().await;
    }
}
