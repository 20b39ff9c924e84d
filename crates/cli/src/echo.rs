//! [`Unechoed`]: keeps a terminal from showing what is typed while it shows an answer.
//!
//! Separate because every way out of the program has to give the terminal back: [`restore`] is also called where nothing is dropped.
//! Invariants: a job in the background leaves the terminal alone, as the system would stop it; text typed meanwhile waits for the next line
//! that is read; a signal that ends or stops the program gives the terminal back first, and one that continues it takes the echo again.

#[cfg(unix)]
pub(crate) use unix::{STOP, Unechoed, restore};

#[cfg(unix)]
mod unix {
    use std::{
        io::{self, IsTerminal as _},
        os::fd::{AsFd, OwnedFd},
        process,
        sync::{Mutex, MutexGuard, Once, PoisonError},
        thread,
    };

    use nix::{
        sys::{
            signal::{Signal, raise},
            termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr},
        },
        unistd::{getpgrp, tcgetpgrp},
    };
    use tokio::signal::unix::{SignalKind, signal};

    /// Holds the terminal and its former settings; `None` while they are unchanged.
    static BEFORE: Mutex<Option<(OwnedFd, Termios)>> = Mutex::new(None);

    /// Stops this program in place of SIGTSTP, which has a handler here. The system's own action for it leaves a program running that no
    /// shell could continue; SIGSTOP would stop that, too.
    pub(crate) const STOP: Signal = Signal::SIGTTIN;

    /// A terminal without echo, until it is dropped.
    #[must_use]
    #[derive(Debug)]
    pub(crate) struct Unechoed(());

    impl Unechoed {
        /// Turns off the echo of the terminal on standard output, if there is one. Where that fails, typed text is shown as ever.
        pub(crate) fn begin() -> Self {
            let stdout = io::stdout();
            if stdout.is_terminal()
                && let Ok(terminal) = stdout.as_fd().try_clone_to_owned()
            {
                return Self::begin_on(terminal);
            }
            Self(())
        }

        fn begin_on(terminal: OwnedFd) -> Self {
            let mut before = before();
            if is_in_background(&terminal) || before.is_some() {
                return Self(());
            }
            if let Ok(was) = tcgetattr(&terminal)
                && quieten(&terminal, &was).is_ok()
            {
                *before = Some((terminal, was));
                follow_signals();
            }
            Self(())
        }
    }

    impl Drop for Unechoed {
        fn drop(&mut self) {
            restore();
        }
    }

    fn before() -> MutexGuard<'static, Option<(OwnedFd, Termios)>> {
        BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Turns off the echo of a terminal with these settings.
    fn quieten(terminal: &OwnedFd, was: &Termios) -> nix::Result<()> {
        let mut quiet = was.clone();
        // Ctrl-C and Ctrl-Z stay signals.
        quiet.local_flags.remove(LocalFlags::ECHO | LocalFlags::ECHONL);
        tcsetattr(terminal, SetArg::TCSANOW, &quiet)
    }

    /// Has the terminal restored when SIGTERM, SIGHUP or SIGQUIT ends the program, and while SIGTSTP stops it. Ctrl-C has a handler of its
    /// own, which calls [`restore`].
    fn follow_signals() {
        static STARTED: Once = Once::new();
        STARTED.call_once(|| {
            // Without the thread these signals end the program as ever.
            let _unstarted = thread::Builder::new().name("terminal".to_owned()).spawn(|| {
                let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else {
                    return;
                };
                if let Some(kind) = runtime.block_on(next_end()) {
                    restore();
                    process::exit(128 + kind.as_raw_value());
                }
            });
        });
    }

    /// Stops and continues the program until a signal ends it; `None` if the system lets no program handle these signals.
    async fn next_end() -> Option<SignalKind> {
        let of = |kind: Signal| signal(SignalKind::from_raw(kind as i32)).ok();
        let mut stopped = of(Signal::SIGTSTP)?;
        let mut continued = of(Signal::SIGCONT)?;
        let [terminate, hangup, quit] = [SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()];
        let mut terminated = signal(terminate).ok()?;
        let mut hung_up = signal(hangup).ok()?;
        let mut has_quit = signal(quit).ok()?;
        loop {
            tokio::select! {
                _ = stopped.recv() => stop(),
                _ = continued.recv() => resume(),
                _ = terminated.recv() => return Some(terminate),
                _ = hung_up.recv() => return Some(hangup),
                _ = has_quit.recv() => return Some(quit),
            }
        }
    }

    /// Stops the program, as Ctrl-Z asked, with the terminal as it was before the answer.
    fn stop() {
        if let Some((terminal, was)) = &*before()
            && !is_in_background(terminal)
        {
            let _refused = tcsetattr(terminal, SetArg::TCSANOW, was);
        }
        let _refused = raise(STOP);
        resume();
    }

    /// Turns the echo off again where the program continues in the foreground of its terminal.
    fn resume() {
        if let Some((terminal, was)) = &*before()
            && !is_in_background(terminal)
        {
            let _refused = quieten(terminal, was);
        }
    }

    /// Restores the terminal's settings.
    pub(crate) fn restore() {
        let before = before().take();
        if let Some((terminal, was)) = before.filter(|(terminal, _)| !is_in_background(terminal)) {
            // Input that waits is not dropped.
            let _refused = tcsetattr(&terminal, SetArg::TCSANOW, &was);
        }
    }

    /// Says whether the system would stop this program for changing its terminal.
    fn is_in_background(terminal: &OwnedFd) -> bool {
        tcgetpgrp(terminal).is_ok_and(|group| group != getpgrp())
    }

    #[cfg(test)]
    mod tests {
        use std::panic::{AssertUnwindSafe, catch_unwind};

        use nix::pty::openpty;

        use super::*;

        #[test]
        fn a_panic_gives_the_terminal_back() {
            // The other end stays open.
            let pair = openpty(None, None).expect("a terminal of its own");
            let terminal = &pair.slave;
            let echoes = || {
                let modes = tcgetattr(terminal).expect("it is a terminal");
                modes.local_flags.contains(LocalFlags::ECHO)
            };
            assert!(echoes());
            let ended = catch_unwind(AssertUnwindSafe(|| {
                let _quiet = Unechoed::begin_on(terminal.try_clone().expect("a descriptor"));
                assert!(!echoes());
                panic!("as an answer may");
            }));
            assert!(ended.is_err());
            assert!(echoes());
        }
    }
}

/// Does nothing: consoles of Windows show what is typed only while a line is read.
#[cfg(not(unix))]
#[must_use]
#[derive(Debug)]
pub(crate) struct Unechoed(());

#[cfg(not(unix))]
impl Unechoed {
    /// Does nothing.
    pub(crate) fn begin() -> Self {
        Self(())
    }
}

/// Does nothing.
#[cfg(not(unix))]
pub(crate) fn restore() {}
