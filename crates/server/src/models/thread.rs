//! The thread that loads and unloads the models of a server.
//!
//! It does what the registry decides. Invariants: there is one such thread, so one model is loaded at a time;
//! a failure or a panic here affects one model only; connections and engines never wait for it but by their
//! own choice.

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use tokenmill::machine::at_low_priority;
use tokenmill_sched::EngineState;

use super::{
    Inner, Kind, Lease, Many, Models,
    by_role::Found,
    lookup::{Answer, Step},
};
use crate::{ApiError, App, ServedModel};

/// How often the thread looks after the engines when nothing happens.
const LOOK: Duration = Duration::from_millis(500);

/// Longest wait for other users of an unloaded model than requests: a file that is being written, for instance.
const LAST_USES: Duration = Duration::from_secs(30);

/// Starts the thread. It ends soon after the last handle to the models is gone.
pub(super) fn start(inner: &Arc<Inner>) {
    let inner = Arc::downgrade(inner);
    let thread = thread::Builder::new().name("models".to_owned());
    let started = thread.spawn(move || {
        let _end = End(&inner);
        while turn(&inner) {}
    });
    started.expect("the system has a thread for the models");
}

/// Tells that the thread has ended, for whatever reason: nothing is loaded any more.
struct End<'a>(&'a Weak<Inner>);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let inner = self.0.upgrade();
        if let Some(Inner {
            kind: Kind::Many(many),
            ..
        }) = inner.as_deref()
        {
            many.has_ended.store(true, Ordering::Release);
        }
    }
}

/// Does one thing, or waits a while; `false` when no handle to the models is left.
fn turn(inner: &Weak<Inner>) -> bool {
    let Some(inner) = inner.upgrade() else {
        return false;
    };
    let models = Models { inner };
    let Some(many) = models.many() else { return false };
    look_after_engines(many);
    look_after_stuck(many);
    if models.shutdown().has_begun() {
        let answers = many.lock().refuse_what_waits(&ApiError::NotReady {
            reason: "it is shutting down",
        });
        send(&models, answers);
    }
    if many.n_nameless.load(Ordering::Acquire) > 0
        && let Some(idx) = many.next_unseen()
    {
        see(many, idx);
        return true;
    }
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
        Step::Unload(idx, app) => {
            let answers = unload(many, idx, app);
            send(&models, answers);
        }
        Step::Answer(answers) => send(&models, answers),
        Step::Refuse(idx, error, answers) => {
            tracing::warn!(model = many.spec(idx).name(), "not loaded: {error}");
            send(&models, answers);
        }
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

/// Reads the facts in a model's files before a request needs them, for the lists.
fn see(many: &Many, idx: usize) {
    let measured = measure(many, idx);
    many.lock().seen(idx, measured, Instant::now());
}

fn measure(many: &Many, idx: usize) -> Result<u64, String> {
    let spec = many.spec(idx);
    let measured = caught(|| spec.loader.measure()).map_err(|reason| one_line(&reason));
    many.note_reading(idx, measured.as_ref().map(Found::from).unwrap_or_default());
    Ok(measured?.n_bytes)
}

fn load(models: &Models, many: &Many, idx: usize) -> Vec<Answer<Arc<App>, Lease>> {
    let spec = many.spec(idx);
    let n_models = many.catalog().specs().len();
    let (is_alone, n_bytes) = {
        let registry = many.lock();
        let now = Instant::now();
        let others = (0..n_models).filter(|&other| other != idx);
        let is_alone = others
            .map(|other| registry.status(other, now))
            .all(|status| status.app.is_none());
        (is_alone, registry.status(idx, now).n_bytes)
    };
    tracing::info!(model = spec.name(), n_bytes, "loading");
    let begun = Instant::now();
    many.note_files(idx);
    let loaded = caught(|| {
        let model = spec.loader.load(!is_alone)?;
        let n_bytes = model.taken_bytes().max(n_bytes);
        many.note_reading(idx, Found::from(&model));
        let served = ServedModel::new(spec.names.clone(), model)
            .given_as(spec.given.clone())
            .with_variants(spec.variants.clone());
        // Preparing the vocabulary for output shapes takes seconds; other models answer meanwhile.
        let app = at_low_priority(|| App::of_many(served, &models.inner.common));
        Ok((Arc::new(app), n_bytes))
    });
    let loaded = loaded.map_err(|reason| one_line(&reason));
    let took = begun.elapsed();
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
        // The loader warns of it, with the details for the operator alone.
        Err(reason) => tracing::info!(model = spec.name(), reason, "not loaded"),
    }
    many.lock().loaded(idx, loaded, Instant::now())
}

/// Lets a model go, and waits a while until its memory is free. An engine that hangs is waited for by a thread of its own.
fn unload(many: &Many, idx: usize, app: Arc<App>) -> Vec<Answer<Arc<App>, Lease>> {
    let begun = Instant::now();
    let rest = app.memory();
    let let_go = move || {
        // A task that outlives its request may still have it. It is to be dropped here, where no request waits for its engine.
        while Arc::strong_count(&app) > 1 && begun.elapsed() < LAST_USES {
            thread::sleep(Duration::from_millis(2));
        }
        drop(app);
    };
    let spawned = thread::Builder::new().name("unload".to_owned()).spawn(let_go);
    if let Err(error) = spawned {
        tracing::warn!(%error, "no thread to unload a model on");
    }
    while rest.strong_count() > 0 && begun.elapsed() < LAST_USES {
        thread::sleep(Duration::from_millis(2));
    }
    let spec = many.spec(idx);
    let name = spec.name();
    if rest.strong_count() == 0 {
        tracing::info!(model = name, seconds = begun.elapsed().as_secs_f64(), "unloaded");
        many.lock().unloaded(idx);
        return Vec::new();
    }
    tracing::warn!(
        model = name,
        "it cannot be unloaded yet: something still uses its memory"
    );
    many.stuck().push((idx, rest));
    let error = ApiError::ModelFailed {
        model: name.to_owned(),
        reason: "it is being unloaded, and something still uses its memory".to_owned(),
    };
    many.lock().stuck(idx, &error, Instant::now())
}

/// Tells of models whose memory has become free late.
fn look_after_stuck(many: &Many) {
    let (free, stuck) = (mem::take(&mut *many.stuck()).into_iter())
        .partition(|(_, rest): &(usize, Weak<()>)| rest.strong_count() == 0);
    *many.stuck() = stuck;
    for (idx, _) in free {
        tracing::info!(model = many.spec(idx).name(), "unloaded");
        many.lock().unloaded(idx);
    }
}

/// Releases models whose engines have ended by themselves. The next request loads them again.
fn look_after_engines(many: &Many) {
    let (catalog, now) = (many.catalog(), Instant::now());
    let mut registry = many.lock();
    for (idx, spec) in catalog.specs().iter().enumerate() {
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

/// Runs work that may fail; a panic counts as a failure.
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
