//! The thread that loads and unloads the models of a server.
//!
//! Separate from the registry, which says what is to be done: here it is done. Invariants: there is one such thread, so one model is
//! loaded at a time; what fails or panics here fails for the one model; connections and engines never wait for it but by their
//! own choice.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use tokenmill::at_low_priority;
use tokenmill_sched::EngineState;

use super::{
    Inner, Lease, Many, Models,
    registry::{Answer, Step},
};
use crate::{ApiError, App, ServedModel};

/// How often the thread looks after the engines when nothing happens.
const LOOK: Duration = Duration::from_millis(500);

/// Longest wait for what still uses a model that is unloaded, besides requests: a file that is being written, for instance.
const LAST_USES: Duration = Duration::from_secs(30);

/// Starts the thread. It ends soon after the last handle to the models is gone.
pub(super) fn start(inner: &Arc<Inner>) {
    let inner = Arc::downgrade(inner);
    let thread = thread::Builder::new().name("models".to_owned());
    let started = thread.spawn(move || while turn(&inner) {});
    started.expect("the system has a thread for the models");
}

/// Does one thing, or waits a while; `false` when no handle to the models is left.
fn turn(inner: &Weak<Inner>) -> bool {
    let Some(inner) = inner.upgrade() else {
        return false;
    };
    let models = Models { inner };
    let Some(many) = models.many() else { return false };
    look_after_engines(many);
    let step = many.lock().next(Instant::now());
    match step {
        Step::Measure(idx) => {
            let measured = measure(many, idx);
            let answers = many.lock().measured(idx, measured, Instant::now());
            send(&models, answers);
        }
        Step::Load(idx) => {
            let answers = load(&models, many, idx);
            send(&models, answers);
        }
        Step::Unload(idx, app) => unload(many, idx, app),
        Step::Answer(answers) => send(&models, answers),
        Step::Wait(time) => {
            if let Some(idx) = many.next_unseen() {
                see(many, idx);
            } else {
                many.wait(time.map_or(LOOK, |time| time.min(LOOK)));
            }
        }
    }
    true
}

/// Sends answers. One that no request takes any more gives its hold back.
fn send(models: &Models, answers: Vec<Answer<Arc<App>, Lease>>) {
    for Answer {
        idx,
        purpose,
        to,
        reply,
    } in answers
    {
        let lease = reply.map(|app| Lease::counted(models.clone(), idx, purpose, app));
        drop(to.send(lease));
    }
}

/// Reads what a model's files say of it before anybody asks, for the lists.
fn see(many: &Many, idx: usize) {
    let measured = measure(many, idx);
    many.lock().seen(idx, measured, Instant::now());
}

fn measure(many: &Many, idx: usize) -> Result<u64, String> {
    let spec = &many.specs[idx];
    let measured = caught(|| spec.loader.measure()).map_err(|reason| one_line(&reason))?;
    many.note_facts(idx, measured.facts);
    Ok(measured.n_bytes)
}

fn load(models: &Models, many: &Many, idx: usize) -> Vec<Answer<Arc<App>, Lease>> {
    let spec = &many.specs[idx];
    let (is_alone, n_bytes) = {
        let registry = many.lock();
        let now = Instant::now();
        let others = (0..many.specs.len()).filter(|&other| other != idx);
        let is_alone = others
            .map(|other| registry.status(other, now))
            .all(|status| status.app.is_none());
        (is_alone, registry.status(idx, now).n_bytes)
    };
    tracing::info!(model = spec.name(), n_bytes, "loading");
    let begun = Instant::now();
    let loaded = caught(|| spec.loader.load(!is_alone)).map_err(|reason| one_line(&reason));
    let took = begun.elapsed();
    let loaded = loaded.map(|model| {
        let n_bytes = model.taken_bytes().max(n_bytes);
        many.note_facts(idx, model.facts().cloned());
        let served = ServedModel::new(spec.names.clone(), model);
        // What shapes need of a vocabulary takes seconds, in which other models answer.
        let app = at_low_priority(|| App::of_many(served, &models.inner.common));
        (Arc::new(app), n_bytes)
    });
    match &loaded {
        Ok((_, n_bytes)) => {
            many.figures.observe_load(spec.name(), took);
            tracing::info!(
                model = spec.name(),
                n_bytes,
                seconds = took.as_secs_f64(),
                "loaded"
            );
        }
        Err(reason) => tracing::warn!(model = spec.name(), reason, "cannot be loaded"),
    }
    many.lock().loaded(idx, loaded, Instant::now())
}

/// Lets a model go, and waits until its memory is free.
fn unload(many: &Many, idx: usize, app: Arc<App>) {
    let begun = Instant::now();
    let rest = Arc::downgrade(&app);
    drop(app);
    // Nothing but a task that outlives its request can still have it.
    while rest.strong_count() > 0 && begun.elapsed() < LAST_USES {
        thread::sleep(Duration::from_millis(2));
    }
    let name = many.specs[idx].name();
    if rest.strong_count() > 0 {
        tracing::warn!(model = name, "unloaded, but something still uses its memory");
    } else {
        tracing::info!(model = name, seconds = begun.elapsed().as_secs_f64(), "unloaded");
    }
    many.lock().unloaded(idx);
}

/// Lets go of models whose engines have ended by themselves. The next request loads them again.
fn look_after_engines(many: &Many) {
    let now = Instant::now();
    let mut registry = many.lock();
    for (idx, spec) in many.specs.iter().enumerate() {
        let Some(app) = registry.status(idx, now).app else {
            continue;
        };
        if let EngineState::Ended(reason) = app.engine().state() {
            let error = ApiError::ModelFailed {
                model: spec.name().to_owned(),
                reason: format!("its engine has ended: {reason}"),
            };
            registry.lost(idx, error, now);
        }
    }
}

/// Runs what may fail; a panic is a failure of it.
fn caught<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        let message = (payload.downcast_ref::<String>().map(String::as_str))
            .or_else(|| payload.downcast_ref::<&str>().copied());
        tracing::error!(message, "loading a model panicked");
        Err("a broken invariant, which the server's log describes".to_owned())
    })
}

fn one_line(reason: &str) -> String {
    reason.split_whitespace().collect::<Vec<_>>().join(" ")
}
